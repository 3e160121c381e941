// What every consumer project builds: attention through the umbrella header, with and without a
// pool (which needs the thread library to be linked).
#include <attn/attn.hpp>
#include <cstdio>

int main() {
  const float keys[4] = {1, 0, 0, 1}, values[2] = {3, 5};
  const float queries[2] = {0, 0};
  float out[1] = {};
  attn::ThreadPool pool(2);
  attn::AttentionOptions options;
  options.executor = &pool;
  attn::scaled_dot_product_attention(
      attn::bhsd(queries, {1, 1, 1, 2}), attn::bhsd(keys, {1, 1, 2, 2}),
      attn::bhsd(values, {1, 1, 2, 1}), attn::bhsd(out, {1, 1, 1, 1}), attn::no_mask(), options);
  std::printf("the mean of 3 and 5 is %g\n", static_cast<double>(out[0]));
  return out[0] == 4.0f ? 0 : 1;
}
