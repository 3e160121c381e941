#include "support/plain_tiles.hpp"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "attn/config.hpp"
#include "attn/detail/kernels/matrix_unit.hpp"
#include "attn/detail/kernels/micro_kernels.hpp"

namespace attn {
namespace test {
namespace {

/// Subnormal numbers are zeros of their sign.
float flush(float x) {
  return std::abs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x;
}

/// The two elements of a lane.
void unpack(const float& lane, float (&elements)[2]) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &lane, 4);
  const std::uint32_t halves[] = {bits << 16, bits & 0xFFFF0000u};
  std::memcpy(elements, halves, 8);
  for (float& element : elements) element = flush(element);
}

/// Tile registers of 16 lines of 16 lanes each, with the interface of detail::AmxTiles.
class PlainTiles {
 public:
  template <int kTile>
  using Tile = detail::Tile<kTile>;

  template <int kTile>
  void zero(Tile<kTile>) {
    std::memset(tiles_[kTile], 0, sizeof tiles_[kTile]);
  }
  template <int kTile>
  void load(Tile<kTile>, const float* from, Index stride) {
    for (Index i = 0; i < 16; ++i) std::memcpy(tiles_[kTile][i], from + i * stride, 64);
  }
  template <int kTile>
  void store(Tile<kTile>, float* to, Index stride) {
    for (Index i = 0; i < 16; ++i) std::memcpy(to + i * stride, tiles_[kTile][i], 64);
  }
  /// TDPBF16PS as "Intel 64 and IA-32 Architectures Software Developer's Manual", volume 2, states
  /// it: "FP32 FMA with DAZ=FTZ=1, RNE rounding", even and odd elements of the pairs in sums of
  /// their own, which are added to each other and then to the destination.
  template <int kSum, int kLeft, int kRight>
  void add_dot_products(Tile<kSum>, Tile<kLeft>, Tile<kRight>) {
    float right[16][16][2];
    for (Index k = 0; k < 16; ++k) {
      for (Index n = 0; n < 16; ++n) unpack(tiles_[kRight][k][n], right[k][n]);
    }
    for (Index line = 0; line < 16; ++line) {
      float sums[16][2] = {};
      for (Index k = 0; k < 16; ++k) {
        float left[2];
        unpack(tiles_[kLeft][line][k], left);
        for (Index n = 0; n < 16; ++n) {
          sums[n][0] = flush(std::fma(left[0], right[k][n][0], sums[n][0]));
          sums[n][1] = flush(std::fma(left[1], right[k][n][1], sums[n][1]));
        }
      }
      for (Index n = 0; n < 16; ++n) {
        float& sum = tiles_[kSum][line][n];
        sum = flush(flush(sum) + flush(sums[n][0] + sums[n][1]));
      }
    }
  }

 private:
  float tiles_[8][16][16] = {};
};

/// MatrixUnit::multiply by VDPBF16PS as the same manual states it: "FP32 FMA with daz in, ftz out
/// and RNE rounding", the later elements of the pairs before the earlier. AMD's Zen 4 does so bit
/// by bit.
void multiply_dots(const float* left, Index left_stride, const float* right, Index right_stride,
                   Index lines, Index columns, Index depth, bool is_first, float* out,
                   Index out_stride) {
  for (Index line = 0; line < lines; ++line) {
    for (Index column = 0; column < columns; ++column) {
      float& sum = out[line * out_stride + column];
      if (is_first) sum = 0;
      for (Index pair = 0; pair < depth / 2; ++pair) {
        float a[2], b[2];
        unpack(left[line * left_stride + pair], a);
        unpack(right[pair * right_stride + column], b);
        sum = flush(std::fma(a[1], b[1], flush(sum)));
        sum = flush(std::fma(a[0], b[0], sum));
      }
    }
  }
}

}  // namespace

const detail::MatrixUnit& plain_tiles() {
  static constexpr detail::MatrixUnit unit = {"plain_tiles", [] {}, [] {},
                                              detail::multiply_tiles<PlainTiles>};
  return unit;
}

const detail::MatrixUnit& plain_dots() {
  static constexpr detail::MatrixUnit unit = {"plain_dots", [] {}, [] {}, multiply_dots};
  return unit;
}

std::vector<const detail::MatrixUnit*> matrix_units() {
  const detail::MatrixUnit* const tiles = detail::amx_unit();
  const detail::MatrixUnit* const dots = detail::bf16_dots_unit();
  return {tiles != nullptr ? tiles : &plain_tiles(), dots != nullptr ? dots : &plain_dots()};
}

const detail::MatrixUnit& model_of(const detail::MatrixUnit& unit) {
  const bool is_tiled = &unit == &plain_tiles() || &unit == detail::amx_unit();
  return is_tiled ? plain_tiles() : plain_dots();
}

}  // namespace test
}  // namespace attn
