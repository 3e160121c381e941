// attn/detail/kernels/matrix_unit.hpp - level 3: products of bfloat16 matrices by what the CPU has
// for them: Intel's AMX here, vectors that multiply pairs (AVX512_BF16) in kernels/bf16_dots.inl.
//
// AMX's product is written over a thin interface of tile registers, so that its logic can be tested
// on any machine over tiles in plain C++ (tests/support/plain_tiles.hpp). AMX is reached by
// assembler text: GCC's intrinsics are such text too, but take no template parameter for the number
// of a tile, and do not say that loading one reads memory. No region of other instructions is
// needed, the compiler uses none of them by itself.
#pragma once

#ifndef ATTN_VERSION_MAJOR
#error "attn/detail/ is not for users: include attn/attn.hpp, or the public header that you need"
#endif

#include <cstdint>
#include <type_traits>

#include "attn/config.hpp"
#include "attn/detail/kernels/cpu_matrix.hpp"
#include "attn/instruction_set.hpp"

// An assembler that knows an extension comes with the compilers that have its header (GCC's,
// Clang's).
#if ATTN_X86_TABLES && defined(__x86_64__) && !defined(__ILP32__) && defined(__has_include)
#if __has_include(<amxbf16intrin.h>) || __has_include(<amxintrin.h>)
#define ATTN_HAS_AMX_TILES 1
#endif
#if __has_include(<avx512bf16intrin.h>)
#define ATTN_HAS_BF16_DOTS 1
#endif
#endif
#ifndef ATTN_HAS_AMX_TILES
#define ATTN_HAS_AMX_TILES 0
#endif
#ifndef ATTN_HAS_BF16_DOTS
#define ATTN_HAS_BF16_DOTS 0
#endif

namespace attn {
namespace detail {

/// A matrix unit as the driver sees it. Matrices are lines of 32-bit lanes, of float or of pairs of
/// bfloat16, the earlier element in the lower half; strides count lanes.
struct MatrixUnit {
  static constexpr Index kRows = 16;   ///< of a tile: `lines` are a multiple of it
  static constexpr Index kPairs = 16;  ///< of a line of a tile: `depth` is a multiple of twice it
  static constexpr Index kColumns = 32;

  const char* name;  ///< that of the instructions

  /// Makes the unit ready on this thread: before the first product, and again where code that is
  /// not ours may have used it.
  void (*configure)();
  /// Gives its state up, which the system would save at each switch of threads.
  void (*release)();
  /// out[i][c] += sum_k left[i][k] * right[k][c] for `lines` x `columns`, where `out` counts as 0
  /// if `is_first`: left[i][k / 2] holds the pair (k, k + 1) of line i, right[k / 2][c] that of
  /// column c. `columns` is a multiple of kColumns.
  ///
  /// In which order the products are summed is the unit's affair, and the same for every element:
  /// multiply-adds in float, rounded to nearest. Subnormal operands count as 0, subnormal results
  /// become 0.
  void (*multiply)(const float* left, Index left_stride, const float* right, Index right_stride,
                   Index lines, Index columns, Index depth, bool is_first, float* out,
                   Index out_stride);
};

inline namespace ATTN_BUILD {

/// The number of a tile register.
template <int kNumber>
using Tile = std::integral_constant<int, kNumber>;

/// 16 x (1 or 2) tile rows by 2 tile columns of a product: 4 tiles of sums, 2 of each operand.
template <int kTileRows, class Tiles>
void multiply_block(Tiles& tiles, const float* left, Index left_stride, const float* right,
                    Index right_stride, Index depth, bool is_first, float* out, Index out_stride) {
  constexpr Tile<0> sum00{};
  constexpr Tile<1> sum01{};
  constexpr Tile<2> sum10{};
  constexpr Tile<3> sum11{};
  constexpr Tile<4> left0{};
  constexpr Tile<5> left1{};
  constexpr Tile<6> right0{};
  constexpr Tile<7> right1{};
  constexpr Index kRows = MatrixUnit::kRows, kLanes = MatrixUnit::kPairs;
  float* const lower = out + kRows * out_stride;
  if (is_first) {
    tiles.zero(sum00);
    tiles.zero(sum01);
    if constexpr (kTileRows == 2) {
      tiles.zero(sum10);
      tiles.zero(sum11);
    }
  } else {
    tiles.load(sum00, out, out_stride);
    tiles.load(sum01, out + kLanes, out_stride);
    if constexpr (kTileRows == 2) {
      tiles.load(sum10, lower, out_stride);
      tiles.load(sum11, lower + kLanes, out_stride);
    }
  }
  for (Index pair = 0; pair < depth / 2; pair += MatrixUnit::kPairs) {
    tiles.load(right0, right + pair * right_stride, right_stride);
    tiles.load(right1, right + pair * right_stride + kLanes, right_stride);
    tiles.load(left0, left + pair, left_stride);
    tiles.add_dot_products(sum00, left0, right0);
    tiles.add_dot_products(sum01, left0, right1);
    if constexpr (kTileRows == 2) {
      tiles.load(left1, left + kRows * left_stride + pair, left_stride);
      tiles.add_dot_products(sum10, left1, right0);
      tiles.add_dot_products(sum11, left1, right1);
    }
  }
  tiles.store(sum00, out, out_stride);
  tiles.store(sum01, out + kLanes, out_stride);
  if constexpr (kTileRows == 2) {
    tiles.store(sum10, lower, out_stride);
    tiles.store(sum11, lower + kLanes, out_stride);
  }
}

/// MatrixUnit::multiply over a kind of tiles. Each block of 2 kPairs products is summed in two
/// chains of multiply-adds, even and odd k, whose sum is added to `out`.
template <class Tiles>
void multiply_tiles(const float* left, Index left_stride, const float* right, Index right_stride,
                    Index lines, Index columns, Index depth, bool is_first, float* out,
                    Index out_stride) {
  Tiles tiles;
  // Columns innermost: the left operand is the one that comes from beyond the first cache.
  for (Index line = 0; line < lines; line += 2 * MatrixUnit::kRows) {
    for (Index column = 0; column < columns; column += MatrixUnit::kColumns) {
      const float* const lines_of_left = left + line * left_stride;
      float* const block = out + line * out_stride + column;
      if (line + 2 * MatrixUnit::kRows <= lines) {
        multiply_block<2>(tiles, lines_of_left, left_stride, right + column, right_stride, depth,
                          is_first, block, out_stride);
      } else {
        multiply_block<1>(tiles, lines_of_left, left_stride, right + column, right_stride, depth,
                          is_first, block, out_stride);
      }
    }
  }
}

#if ATTN_HAS_AMX_TILES

/// AMX's tile registers: 16 lines of 16 lanes each.
struct AmxTiles {
  template <int kTile>
  static void zero(Tile<kTile>) {
    __asm__ volatile("{tilezero\t%%tmm%c0|tilezero\ttmm%c0}" : : "i"(kTile));
  }
  template <int kTile>
  static void load(Tile<kTile>, const float* from, Index stride) {
    __asm__ volatile("{tileloadd\t(%0,%1,1), %%tmm%c2|tileloadd\ttmm%c2, [%0+%1*1]}"
                     :
                     : "r"(from), "r"(stride * 4), "i"(kTile)
                     : "memory");
  }
  template <int kTile>
  static void store(Tile<kTile>, float* to, Index stride) {
    __asm__ volatile("{tilestored\t%%tmm%c2, (%0,%1,1)|tilestored\t[%0+%1*1], tmm%c2}"
                     :
                     : "r"(to), "r"(stride * 4), "i"(kTile)
                     : "memory");
  }
  template <int kSum, int kLeft, int kRight>
  static void add_dot_products(Tile<kSum>, Tile<kLeft>, Tile<kRight>) {
    __asm__ volatile("{tdpbf16ps\t%%tmm%c2, %%tmm%c1, %%tmm%c0|tdpbf16ps\ttmm%c0, tmm%c1, tmm%c2}"
                     :
                     : "i"(kSum), "i"(kLeft), "i"(kRight));
  }

  static void configure() {
    struct Configuration {
      std::uint8_t palette, start_row, reserved[14];
      std::uint16_t bytes_of_row[16];
      std::uint8_t rows[16];
    };
    static_assert(sizeof(Configuration) == 64);
    static constexpr Configuration all_tiles_whole = {
        1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
    __asm__ volatile("ldtilecfg\t%0" : : "m"(all_tiles_whole));
  }
  static void release() { __asm__ volatile("tilerelease" : :); }
};

#endif

/// AMX, or null where it may not be used.
template <class = void>
const MatrixUnit* amx_unit() {
#if ATTN_HAS_AMX_TILES
  static constexpr MatrixUnit unit = {"AMX", AmxTiles::configure, AmxTiles::release,
                                      multiply_tiles<AmxTiles>};
  if (may_use_amx()) return &unit;
#endif
  return nullptr;
}

/// Holds a matrix unit, or none, ready on this thread.
class MatrixUnitScope {
 public:
  explicit MatrixUnitScope(const MatrixUnit* unit) : unit_(unit) {
    if (unit_ != nullptr) unit_->configure();
  }
  MatrixUnitScope(const MatrixUnitScope&) = delete;
  MatrixUnitScope& operator=(const MatrixUnitScope&) = delete;
  ~MatrixUnitScope() {
    if (unit_ != nullptr) unit_->release();
  }

 private:
  const MatrixUnit* unit_;
};

}  // namespace ATTN_BUILD
}  // namespace detail
}  // namespace attn
