// attn/detail/loop/run.hpp - level 9: the engine with its body, unless that is in the library.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include "attn/config.hpp"
#include "attn/detail/loop/engine.hpp"

#if ATTN_HAS_ENGINE
#include "attn/detail/loop/driver.hpp"
#endif
