// attn/attn.hpp - level 6: everything, except reference.hpp (the oracle of tests) and openmp.hpp
// (for programs built with -fopenmp). To read the library, start at attention.hpp.
#pragma once

#include "attn/attention.hpp"
#include "attn/attention_block.hpp"
#include "attn/attention_config.hpp"
#include "attn/config.hpp"
#include "attn/cost.hpp"
#include "attn/error.hpp"
#include "attn/executor.hpp"
#include "attn/heatmap.hpp"
#include "attn/inspect.hpp"
#include "attn/kv_cache.hpp"
#include "attn/layer_norm.hpp"
#include "attn/linear.hpp"
#include "attn/mask.hpp"
#include "attn/merge.hpp"
#include "attn/multi_head.hpp"
#include "attn/options.hpp"
#include "attn/ragged.hpp"
#include "attn/random.hpp"
#include "attn/rotary.hpp"
#include "attn/tensor.hpp"
