// attn/detail/kernels/score_masks.inl - masks and biases that are tensors of the shape of the
// scores, and ALiBi. A part of kernels.inl, which says how it is compiled.

namespace attn {
namespace detail {
namespace ATTN_SIMD_NAMESPACE {

constexpr Index kMaskBlock = 16;

/// to[c][r] = from[r][c] for kMaskBlock x kMaskBlock elements.
template <class Element>
ATTN_SIMD_INLINE void turn_block(const Element* from, Index from_stride,
                                 Element (*to)[kMaskBlock]) {
  using L = Line<Element>;
  if constexpr (sizeof(Element) == 1) {
    typename L::Vec x[kMaskBlock];
    ATTN_SIMD_UNROLL
    for (Index i = 0; i < kMaskBlock; ++i) {
      x[i] = *reinterpret_cast<const typename L::VecAt*>(from + i * from_stride);
    }
    turn<Element>(x);
    ATTN_SIMD_UNROLL
    for (Index i = 0; i < kMaskBlock; ++i) {
      *reinterpret_cast<typename L::VecAt*>(to[i]) = x[i];
    }
  } else {
    for (Index r = 0; r < kMaskBlock; r += kBlockRows<Element>) {
      for (Index c = 0; c < kMaskBlock; c += kBlockColumns<Element>) {
        transpose_block(from + r * from_stride + c, from_stride, to[c] + r, kMaskBlock);
      }
    }
  }
}

/// Calls f(scores, elements, count) for pieces of lines of scores, up to kMaskBlock long, and the
/// elements at their places. Elements that do not lie as the scores do are turned round, or
/// gathered, in small blocks: a walk along either's far axis costs several times the arithmetic.
/// Blocks follow each other along the axis that is near in the tensor.
template <class A, class Element, class F>
ATTN_SIMD_INLINE void for_each_piece(A* scores, Index lines, Index count, Index stride,
                                     const ScoreElements<Element>& elements, const F& f) {
  const Index along = elements.entry_stride, across = elements.line_stride;
  Element block[kMaskBlock][kMaskBlock];
  for (Index i = 0; i < count; i += kMaskBlock) {
    const Index size = count - i < kMaskBlock ? count - i : kMaskBlock;
    for (Index line = 0; line < lines; line += kMaskBlock) {
      const Index block_lines = lines - line < kMaskBlock ? lines - line : kMaskBlock;
      const Element* const first = elements.first + line * across + i * along;
      A* const at = scores + line * stride + i;
      if (along == 1) {
        for (Index l = 0; l < block_lines; ++l) f(at + l * stride, first + l * across, size);
        continue;
      }
      if (across == 1 && block_lines == kMaskBlock && size == kMaskBlock) {
        turn_block(first, along, block);
      } else {
        for (Index l = 0; l < block_lines; ++l) {
          for (Index e = 0; e < size; ++e) block[l][e] = first[l * across + e * along];
        }
      }
      for (Index l = 0; l < block_lines; ++l) f(at + l * stride, block[l], size);
    }
  }
}

typedef signed char Bytes __attribute__((vector_size(16)));
typedef long long Words __attribute__((vector_size(16)));

// Lane i: byte i of x, sign and all.
#if ATTN_SIMD_X86 >= 3 && defined(__clang__)
template <class IntVec, std::size_t... kLane>
ATTN_SIMD_INLINE IntVec extend_bytes(Bytes x, std::index_sequence<kLane...>) {
  return __builtin_convertvector(__builtin_shufflevector(x, x, kLane...), IntVec);
}
ATTN_SIMD_INLINE Int32Vec extend_bytes(Bytes x, float) {
  return extend_bytes<Int32Vec>(x, std::make_index_sequence<Simd<float>::kLanes>());
}
ATTN_SIMD_INLINE Int64Vec extend_bytes(Bytes x, double) {
  return extend_bytes<Int64Vec>(x, std::make_index_sequence<Simd<double>::kLanes>());
}
#elif ATTN_SIMD_X86 == 4
typedef char Chars __attribute__((vector_size(16)));
ATTN_SIMD_INLINE Int32Vec extend_bytes(Bytes x, float) {
  return __builtin_ia32_pmovsxbd512_mask(reinterpret_cast<Chars>(x), Int32Vec{}, kAll16);
}
ATTN_SIMD_INLINE Int64Vec extend_bytes(Bytes x, double) {
  typedef long long Wide __attribute__((vector_size(64)));
  return reinterpret_cast<Int64Vec>(
      __builtin_ia32_pmovsxbq512_mask(reinterpret_cast<Chars>(x), Wide{}, kAll8));
}
#elif ATTN_SIMD_X86 == 3
typedef char Chars __attribute__((vector_size(16)));
ATTN_SIMD_INLINE Int32Vec extend_bytes(Bytes x, float) {
  return __builtin_ia32_pmovsxbd256(reinterpret_cast<Chars>(x));
}
ATTN_SIMD_INLINE Int64Vec extend_bytes(Bytes x, double) {
  return reinterpret_cast<Int64Vec>(__builtin_ia32_pmovsxbq256(reinterpret_cast<Chars>(x)));
}
#else
// Each byte of a lane is that byte: as good, where all that is asked is whether it is 0.
template <class A>
ATTN_SIMD_INLINE typename Simd<A>::IntVec extend_bytes(Bytes x, A) {
  constexpr std::make_index_sequence<16> kBytes;
  auto bytes = reinterpret_cast<Line<unsigned char>::Vec>(x);
  ATTN_SIMD_UNROLL
  for (unsigned width = 1; width < sizeof(A); width *= 2) {
    bytes = interleave<unsigned char, 0>(bytes, bytes, kBytes);
  }
  return reinterpret_cast<typename Simd<A>::IntVec>(bytes);
}
#endif

/// All ones for the lanes whose byte is 0.
template <class A>
ATTN_SIMD_INLINE typename Simd<A>::IntVec is_zero_byte(const unsigned char* p) {
  Words words = {};
  if constexpr (Simd<A>::kLanes == 16) {
    __builtin_memcpy(&words, p, 16);
  } else {  // by a scalar: a vector that is stored in parts would have to wait for its load
    std::uint64_t low = 0;
    __builtin_memcpy(&low, p, static_cast<std::size_t>(Simd<A>::kLanes));
    words[0] = static_cast<long long>(low);
  }
  return equal(extend_bytes(reinterpret_cast<Bytes>(words), A()), typename Simd<A>::IntVec{});
}

template <class A>
ATTN_SIMD_INLINE typename Simd<A>::Vec minus_infinity() {
  return as_float(Simd<A>::kMinusInfinity - typename Simd<A>::IntVec{});
}

template <class A>
void keep_scores(A* scores, Index lines, Index count, Index stride,
                 const ScoreElements<unsigned char>& mask, bool keeps) {
  using S = Simd<A>;
  const typename S::IntVec flip = typename S::Int(keeps ? 0 : -1) - typename S::IntVec{};
  const auto apply = [&](A* at, const unsigned char* bytes, Index size) {
    Index i = 0;
    for (; i + S::kLanes <= size; i += S::kLanes) {
      store(at + i, select(is_zero_byte<A>(bytes + i) ^ flip, minus_infinity<A>(), load(at + i)));
    }
    for (; i < size; ++i) {
      if ((bytes[i] != 0) != keeps) at[i] = minus_infinity<A>()[0];
    }
  };
  for_each_piece(scores, lines, count, stride, mask, apply);
}

template <class A>
void bias_scores(A* scores, Index lines, Index count, Index stride, const ScoreElements<A>& bias,
                 bool adds) {
  using S = Simd<A>;
  const auto biased = [&](typename S::Vec score, typename S::Vec x) {
    const auto drops = equal(as_bits(x), as_bits(minus_infinity<A>()));
    return select(drops, x, adds ? score + x : score);
  };
  const auto apply = [&](A* at, const A* x, Index size) {
    Index i = 0;
    for (; i + S::kLanes <= size; i += S::kLanes) {
      store(at + i, biased(load(at + i), load(x + i)));
    }
    if (i < size) {
      store_first(at + i, biased(load_first(at + i, size - i), load_first(x + i, size - i)),
                  size - i);
    }
  };
  for_each_piece(scores, lines, count, stride, bias, apply);
}

template <class A>
void slope_scores(A* scores, Index lines, Index count, Index stride, Index distance, A slope) {
  using S = Simd<A>;
  // Whole numbers below are exact; of others each is rounded by itself.
  constexpr Index kExact = Index{1} << (sizeof(A) == 4 ? 24 : sizeof(Index) == 4 ? 30 : 53);
  typename S::Vec lane = {};
  for (Index i = 0; i < S::kLanes; ++i) lane[i] = A(i);
  const auto magnitude = ~as_bits(broadcast(A(-0.0)));
  const typename S::Vec factor = broadcast(-slope);
  for (Index line = 0; line < lines; ++line) {
    A* const at = scores + line * stride;
    const Index first = distance - line, last = first + count;
    Index i = 0;
    if (-kExact < first && last < kExact) {
      for (; i + S::kLanes <= count; i += S::kLanes) {
        const auto steps = as_bits(broadcast(A(first + i)) + lane) & magnitude;
        store(at + i, multiply_add(as_float(steps), factor, load(at + i)));
      }
    }
    for (; i < count; ++i) {
      const A steps = A(first + i < 0 ? -(first + i) : first + i);
      at[i] = multiply_add(broadcast(steps), factor, broadcast(at[i]))[0];
    }
  }
}

}  // namespace ATTN_SIMD_NAMESPACE
}  // namespace detail
}  // namespace attn
