// tests/conformance/torch_adapter.hpp - PyTorch's attention functions in terms of attn. Where the
// two differ by contract, the difference has a function here, and its name.
//
//   polarity    scaled_dot_product_attention: true in a boolean mask may attend.
//               nn.MultiheadAttention: true blocks, in attn_mask and in key_padding_mask.
//   alignment   is_causal puts query 0 at key 0, whatever the lengths.
//   positions   The functions of flex_attention get the query's index, not its position.
//   rank 3      attn_mask of nn.MultiheadAttention is (batch * heads, Sq, Sk).
//   empty row   nn.MultiheadAttention gives NaN; attn gives zeros. (The two functions give zeros.)
#pragma once

#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "attn/attn.hpp"
#include "conformance/case_file.hpp"

namespace attn {
namespace test {

/// A mask and the elements that it views.
template <class T>
struct TorchMask {
  AnyMask mask;
  std::vector<std::uint8_t> flags;
  std::vector<T> bias;
  double max_bias = 0;  // the largest finite one

  TorchMask() = default;
  TorchMask(const TorchMask&) = delete;  // mask views the vectors
  TorchMask& operator=(const TorchMask&) = delete;

  void add(const CaseTensor& tensor, Shape4 shape, bool true_keeps) {
    if (tensor.type == "bool") {
      flags = tensor.as<std::uint8_t>();
      const Tensor4<const std::uint8_t> view = bhsd<const std::uint8_t>(flags.data(), shape);
      mask = true_keeps ? AnyMask(mask & keep_where(view)) : AnyMask(mask & drop_where(view));
    } else {
      bias = tensor.as<T>();
      mask = mask & add_bias(bhsd<const T>(bias.data(), shape));
      for (const double value : tensor.values) {
        if (std::isfinite(value)) max_bias = (std::max)(max_bias, std::abs(value));
      }
    }
  }
};

/// scaled_dot_product_attention: attn_mask and is_causal.
template <class T>
void add_sdpa_mask(const Case& c, TorchMask<T>& to) {
  if (c.number("is_causal", 0) != 0) to.mask = to.mask & causal_top_left();
  if (c.has("attn_mask")) {
    const CaseTensor& mask = c.tensors.at("attn_mask");
    to.add(mask, right_aligned(mask.shape), true);
  }
}

/// nn.MultiheadAttention: attn_mask of rank 2 or 3.
template <class T>
void add_multi_head_mask(const Case& c, Index batch, TorchMask<T>& to) {
  if (!c.has("attn_mask")) return;
  const CaseTensor& mask = c.tensors.at("attn_mask");
  Shape4 shape = right_aligned(mask.shape);
  if (mask.shape.size() == 3) shape = {batch, shape.heads / batch, shape.length, shape.dim};
  to.add(mask, shape, false);
}

/// nn.MultiheadAttention: key_padding_mask (batch, Sk).
template <class T>
void add_key_padding_mask(const Case& c, TorchMask<T>& to) {
  if (!c.has("key_padding_mask")) return;
  const CaseTensor& mask = c.tensors.at("key_padding_mask");
  to.add(mask, {mask.shape[0], 1, 1, mask.shape[1]}, false);
}

/// What attn gives where nn.MultiheadAttention's softmax over no keys gave NaN: weights 0, and so
/// the output projection of 0, its bias.
inline double without_nan(double torchs, double bias) { return std::isnan(torchs) ? bias : torchs; }

/// The functions that generate_torch_cases.py gives to flex_attention, by name. Its queries stand
/// at the end of the keys, as attn's do unless something else is said.
inline AnyMask flex_modifier(const Case& c, Index queries, Span<const double> slopes,
                             AttentionOptions& options) {
  const std::string name = c.word("modifier");
  if (name == "plain") return no_mask();
  if (name == "softcap") {
    options.softcap = 1.5;
    return no_mask();
  }
  if (name == "alibi") return alibi(slopes);
  if (name == "relative_bias") {
    return modify_score([](auto score, ScorePosition at) {
      const auto distance = static_cast<decltype(score)>(at.query - at.key);
      return score + distance * static_cast<decltype(score)>(0.0625) *
                         static_cast<decltype(score)>(at.head + 1);
    });
  }
  if (name == "causal_top_left") return causal_top_left();
  if (name == "causal_bottom_right") return causal_bottom_right();
  if (name == "window") return sliding_window(2, 1);
  if (name == "documents") {
    return keep_if([](ScorePosition at) { return at.query_position / 3 == at.key / 3; });
  }
  if (name == "softcap_alibi_causal_window") {
    options.softcap = 1.5;
    return alibi(slopes) & causal_bottom_right() & sliding_window(4, queries);
  }
  throw std::runtime_error("flex_attention: the test does not know the function " + name);
}

}  // namespace test
}  // namespace attn
