// The half of attn_mixed_math that is compiled with -ffast-math.
#include "hygiene/smoke.hpp"

void smoke_fast() { smoke(); }
