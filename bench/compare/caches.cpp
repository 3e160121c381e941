// bench/compare/caches.cpp - calls over caches, and over packed sequences.
#include <algorithm>

#include "draw.hpp"

namespace compare {
namespace {

/// Adds what failed to the hash; the next operation finds the cache as it was.
template <class F>
void attempt(Line& line, const F& f) {
  try {
    f();
    line.hash.add(Index{0});
  } catch (const attn::ShapeError&) {
    line.hash.add(Index{1});
    line.say("(ShapeError)");
  } catch (const attn::OptionError&) {
    line.hash.add(Index{2});
    line.say("(OptionError)");
  }
}

struct CacheSizes {
  Index batch, heads, query_heads, key_dim, value_dim, longest;
};

CacheSizes draw_cache_sizes(Draw& draw) {
  CacheSizes s;
  s.batch = draw.of({1, 1, 2, 3});
  s.heads = draw.of({1, 1, 2, 4});
  s.query_heads = s.heads * draw.of({1, 1, 2, 4, 8, 16});
  s.key_dim = draw.one_in(2) ? draw.of({16, 32, 64, 128}) : draw.between(1, 70);
  s.value_dim = draw.one_in(2) ? s.key_dim : draw.between(1, 70);
  // How long a prompt is: the longest are split.
  s.longest = draw.one_in(10)  ? 4300
              : draw.one_in(3) ? draw.of({129, 300, 700})
                               : draw.between(1, 70);
  return s;
}

/// One call over the cache as it is, by scaled_dot_product_attention or, packed, ragged_attention.
template <class Cache>
void attend(Draw& draw, const CacheSizes& s, const Cache& cache, bool is_rolling, Line& line) {
  using T = typename Cache::Element;
  const Element query_type = draw_element(draw);
  const Element out_type = draw.one_in(2) ? Element::f32 : query_type;
  const Index keys = cache.longest_length();
  const bool is_ragged = draw.one_in(3);
  const Index queries = draw.one_in(2) ? 1 : draw.between(1, draw.one_in(4) ? 60 : 5);
  const bool may_share = s.batch == 1 && !is_ragged && draw.one_in(4);
  const Index batch = may_share ? 3 : s.batch;
  line.say(std::string("; ") + (is_ragged ? "ragged " : "") + name_of(query_type) + "->" +
           name_of(out_type) + " q" + std::to_string(queries) + " k" + std::to_string(keys));

  Options options;
  const Shape4 scores{batch, s.query_heads, queries, keys};
  options.draw(draw, scores, !is_ragged && !is_rolling && draw.one_in(4), line);
  Masks masks;
  const Index shortest = *std::min_element(cache.lengths().begin(), cache.lengths().end());
  const attn::AnyMask mask = is_ragged
                                 ? masks.draw(draw, {s.batch, s.query_heads, shortest, shortest},
                                              options, Masks::Source::ragged, line)
                                 : masks.draw(draw, scores, options, Masks::Source::cache, line);
  const bool has_workspace = draw.one_in(3), has_sums = draw.one_in(3);
  const bool has_weights = !is_ragged && keys < 1000 && draw.one_in(4);

  std::vector<std::int64_t> starts{0};
  for (Index b = 0; b < s.batch; ++b) {
    const Index most = (std::min)(queries, cache.length(b));
    starts.push_back(starts.back() + draw.between(0, most));
  }
  const Index rows = is_ragged ? static_cast<Index>(starts.back()) : queries;
  const Index packed_batch = is_ragged ? 1 : batch;
  Tensor q = draw_tensor(draw, query_type, {packed_batch, s.query_heads, rows, s.key_dim});
  Tensor out = draw_result(draw, out_type, {packed_batch, s.query_heads, rows, s.value_dim});
  const bool is_double = std::is_same_v<T, double> || query_type == Element::f64;
  const Element sum_type = is_double ? Element::f64 : Element::f32;
  Tensor sums, weights;
  if (has_sums) sums = draw_result(draw, sum_type, {packed_batch, s.query_heads, rows, 1});
  if (has_weights) weights = draw_result(draw, sum_type, scores);

  attempt(line, [&] {
    visit(query_type, [&](auto* type) {
      using Q = Pointee<decltype(type)>;
      const auto run = [&](auto* to) {
        using O = Pointee<decltype(to)>;
        using A = attn::AccumulationType<Q, T, O>;
        const auto read = q.read<Q>();
        if (is_ragged) {
          if (has_workspace) {
            options.set_workspace(
                attn::ragged_workspace_bytes(read, cache, starts, mask, options.value));
          }
          attn::Tensor4<A> log_sum_exp;
          if (has_sums) log_sum_exp = sums.view<A>();
          attn::ragged_attention(read, cache, out.view<O>(), starts, mask, options.value,
                                 log_sum_exp);
        } else {
          if (has_workspace) {
            options.set_workspace(
                attn::attention_workspace_bytes(read, cache, mask, options.value));
          }
          attn::AttentionOutputs<A> extra;
          if (has_sums) extra.log_sum_exp = sums.view<A>();
          if (has_weights) extra.weights = weights.view<A>();
          attn::scaled_dot_product_attention(read, cache, out.view<O>(), mask, options.value,
                                             extra);
        }
      };
      if (out_type == query_type) {
        run(type);
      } else {
        run(static_cast<float*>(nullptr));
      }
    });
  });
  out.add_to(line.hash);
  sums.add_to(line.hash);
  weights.add_to(line.hash);
}

template <class Cache>
void append(Draw& draw, const CacheSizes& s, Cache& cache, Index tokens, Line& line) {
  const bool to_one = draw.one_in(4);
  const Index batch = to_one ? 1 : s.batch;
  Tensor k = draw_tensor(draw, Element::f32, {batch, s.heads, tokens, s.key_dim});
  Tensor v = draw_tensor(draw, element_of<typename Cache::Element>(),
                         {batch, s.heads, tokens, s.value_dim});
  std::vector<std::int64_t> counts;
  for (Index b = 0; b < s.batch; ++b) counts.push_back(draw.between(0, tokens));
  const bool has_counts = draw.one_in(4);
  const Index sequence = draw.below(s.batch);
  line.say("+" + std::to_string(tokens));
  attempt(line, [&] {
    const auto keys = k.read<float>();
    const auto values = v.read<typename Cache::Element>();
    if (to_one) {
      cache.append_to(sequence, keys, values);
    } else if (has_counts) {
      cache.append(keys, values, counts);
    } else {
      cache.append(keys, values);
    }
  });
}

/// Fills, cuts and reads a cache. `share`: what a paged one does beside.
template <class Cache, class Share>
void use_cache(Draw& draw, const CacheSizes& s, Cache& cache, bool is_rolling, const Share& share,
               Line& line) {
  append(draw, s, cache, s.longest, line);
  const Index rounds = s.longest > 1000 ? 1 : draw.between(1, 4);
  for (Index round = 0; round < rounds; ++round) {
    attend(draw, s, cache, is_rolling, line);
    const std::vector<Index> lengths(cache.lengths().begin(), cache.lengths().end());
    switch (draw.below(6)) {
      case 0: {
        std::vector<std::int64_t> kept;
        for (const Index length : lengths) {
          kept.push_back((std::max)(Index{0}, length - draw.below(6)));
        }
        line.say("cut");
        attempt(line, [&] { cache.truncate(kept); });
        break;
      }
      case 1:
        line.say("reset");
        if (draw.one_in(4)) {
          cache.reset();
        } else {
          const Index sequence = draw.below(s.batch);
          attempt(line, [&] { cache.reset(sequence); });
        }
        break;
      case 2:
        share(lengths);
        break;
      default:
        append(draw, s, cache, draw.one_in(3) ? draw.between(0, 40) : 1, line);
    }
    for (const Index length : cache.lengths()) line.hash.add(length);
  }
  attend(draw, s, cache, is_rolling, line);
}

}  // namespace

void call_cache(Draw& draw, Line& line) {
  const CacheSizes s = draw_cache_sizes(draw);
  const Element element = draw_element(draw);
  const Index kind = draw.below(4);
  const Index window = draw.one_in(2) ? draw.between(1, 40) : draw.of({64, 200});
  const Index longest_append = draw.one_in(2) ? 1 : draw.between(1, 40);
  const Index page = draw.of({1, 3, 8, 16, 64, 256});
  line.say(std::string(name_of(element)) + " B" + std::to_string(s.batch) + " H" +
           std::to_string(s.query_heads) + "/" + std::to_string(s.heads) + " D" +
           std::to_string(s.key_dim) + "/" + std::to_string(s.value_dim));
  const auto nothing = [](const std::vector<Index>&) {};
  visit(element, [&](auto* type) {
    using T = Pointee<decltype(type)>;
    if (kind == 0) {
      line.say("contiguous");
      attn::KeyValueCache<T> cache(s.batch, s.heads, s.longest + 90, s.key_dim, s.value_dim);
      use_cache(draw, s, cache, false, nothing, line);
    } else if (kind == 1) {
      line.say("borrowed");
      Tensor keys = draw_result(draw, element, {s.batch, s.heads, s.longest + 90, s.key_dim});
      Tensor values = draw_result(draw, element, {s.batch, s.heads, s.longest + 90, s.value_dim});
      attn::KeyValueCache<T> cache(keys.view<T>(), values.view<T>());
      use_cache(draw, s, cache, false, nothing, line);
      keys.add_to(line.hash);
      values.add_to(line.hash);
    } else if (kind == 2) {
      line.say("rolling " + std::to_string(window));
      attn::RollingKeyValueCache<T> cache(s.batch, s.heads, window, s.key_dim, s.value_dim,
                                          longest_append);
      use_cache(draw, s, cache, true, nothing, line);
      for (Index b = 0; b < s.batch; ++b) line.hash.add(cache.first_held(b));
    } else {
      line.say("paged " + std::to_string(page));
      const Index pages = s.batch * ((s.longest + 90) / page + 1);
      attn::PagedKeyValueCache<T> cache(pages, page, s.batch, s.heads, s.key_dim, s.value_dim);
      const auto share = [&](const std::vector<Index>& lengths) {
        const Index from = draw.below(s.batch), to = draw.below(s.batch);
        const Index length = draw.between(0, lengths[static_cast<std::size_t>(from)]);
        line.say("share");
        attempt(line, [&] { cache.share_prefix(from, to, length); });
      };
      use_cache(draw, s, cache, false, share, line);
      line.hash.add(cache.num_free_pages());
      for (Index b = 0; b < s.batch; ++b) {
        for (const Index number : cache.pages(b)) line.hash.add(number);
      }
    }
  });
}

void call_ragged(Draw& draw, Line& line) {
  const Sizes s = draw_sizes(draw);
  const Element element = draw_element(draw);
  const bool is_mixed = draw.one_in(4), is_self = draw.one_in(2);
  std::vector<std::int64_t> query_starts{0}, key_starts{0};
  const Index sequences = draw.between(1, draw.one_in(10) ? 60 : 6);
  Index shortest = 5000;
  for (Index i = 0; i < sequences; ++i) {
    const Index queries = draw.one_in(8) ? 0 : draw.between(1, draw.one_in(6) ? 200 : 40);
    const Index keys = is_self ? queries : draw.below(draw.one_in(3) ? 600 : 60);
    query_starts.push_back(query_starts.back() + queries);
    key_starts.push_back(key_starts.back() + keys);
    shortest = (std::min)(shortest, keys);
  }
  const Index queries = static_cast<Index>(query_starts.back());
  const Index keys = static_cast<Index>(key_starts.back());
  const Element value_element = is_mixed ? Element::bf16 : element;
  line.say(std::string(name_of(element)) + (is_mixed ? "/bf16" : "") + (is_self ? " self " : " ") +
           std::to_string(sequences) + " sequences H" + std::to_string(s.query_heads) + "/" +
           std::to_string(s.key_heads) + "/" + std::to_string(s.value_heads) + " S" +
           std::to_string(queries) + "/" + std::to_string(keys) + " D" + std::to_string(s.key_dim) +
           "/" + std::to_string(s.value_dim));
  Options options;
  options.draw(draw, {sequences, s.query_heads, 1, 1}, false, line);
  Masks masks;
  const attn::AnyMask mask =
      masks.draw(draw, {sequences, s.query_heads, is_self ? shortest : -1, shortest}, options,
                 Masks::Source::ragged, line);
  const bool has_workspace = draw.one_in(3), has_sums = draw.one_in(3);
  Tensor q = draw_tensor(draw, element, {1, s.query_heads, queries, s.key_dim});
  Tensor k = draw_tensor(draw, element, {1, s.key_heads, keys, s.key_dim});
  Tensor v = draw_tensor(draw, value_element, {1, s.value_heads, keys, s.value_dim});
  Tensor out = draw_result(draw, element, {1, s.query_heads, queries, s.value_dim});
  Tensor sums;
  if (has_sums) {
    sums = draw_result(draw, element == Element::f64 ? Element::f64 : Element::f32,
                       {1, s.query_heads, queries, 1});
  }
  visit(element, [&](auto* type) {
    using T = Pointee<decltype(type)>;
    const auto run = [&](auto* value_type) {
      using V = Pointee<decltype(value_type)>;
      const attn::SequenceStarts starts = is_self ? attn::SequenceStarts(query_starts)
                                                  : attn::SequenceStarts(query_starts, key_starts);
      if (has_workspace) {
        options.set_workspace(attn::ragged_workspace_bytes(q.read<T>(), k.read<T>(), v.read<V>(),
                                                           starts, mask, options.value));
      }
      attn::Tensor4<attn::AccumulationType<T, V>> log_sum_exp;
      if (has_sums) log_sum_exp = sums.view<attn::AccumulationType<T, V>>();
      attn::ragged_attention(q.read<T>(), k.read<T>(), v.read<V>(), out.view<T>(), starts, mask,
                             options.value, log_sum_exp);
    };
    if (is_mixed) {
      run(static_cast<Eigen::bfloat16*>(nullptr));
    } else {
      run(type);
    }
  });
  out.add_to(line.hash);
  sums.add_to(line.hash);
}

}  // namespace compare
