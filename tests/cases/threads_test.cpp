// Public bug reports: threads that nobody asked for, and state that calls share.
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "attn/attn.hpp"
#include "support/oracle.hpp"

namespace attn {
namespace test {
namespace {

/// The threads of this process, by the system's count.
int thread_count() {
  std::ifstream status("/proc/self/status");
  std::string word;
  int count = 0;
  while (status >> word) {
    if (word == "Threads:") status >> count;
  }
  return count;
}

// verilog-to-routing/vtr-verilog-to-routing#3030: a library takes all cores by itself.
TEST(Threads, D48NoExecutorMeansTheCallersThreadAlone) {
  const Inputs<float> in({2, 4, 4, 4, 200, 200, 32, 32});
  const int before = thread_count(), eigen_before = Eigen::nbThreads();
  ASSERT_GT(before, 0);
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<int> most{0}, elsewhere{0};
  const AnyMask mask = keep_if([&](ScorePosition at) {
    if (std::this_thread::get_id() != caller) ++elsewhere;
    if (at.query == 0 && at.key == 0) most = (std::max)(most.load(), thread_count());
    return true;
  });
  const auto result = scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), mask);
  EXPECT_EQ(elsewhere, 0);
  EXPECT_EQ(most, before);
  EXPECT_EQ(thread_count(), before);
  EXPECT_EQ(Eigen::nbThreads(), eigen_before);
}

// EricLBuehler/mistral.rs#1669: concurrent requests meet in shared state. (On one layer object it
// is a test of the layers.)
TEST(Threads, D68ConcurrentCallsShareNothing) {
  constexpr int kThreads = 8, kCalls = 200;
  struct Request {
    Inputs<float> in;
    AnyMask mask;
    AttentionResult<float, float> expected;
  };
  std::vector<Request> requests;
  const auto add = [&](const Sizes& sizes, const AnyMask& mask) {
    Inputs<float> in(sizes, requests.size() + 1);
    auto expected = scaled_dot_product_attention(in.q.view(), in.k.view(), in.v.view(), mask);
    requests.push_back({std::move(in), mask, std::move(expected)});
  };
  add({1, 4, 2, 2, 1, 50, 16, 16}, AnyMask());
  add({2, 2, 2, 2, 30, 30, 8, 8}, causal());
  add({1, 3, 1, 1, 17, 40, 5, 7}, alibi() & sliding_window(9, 0));
  add({1, 1, 1, 1, 3, 140, 4, 4}, key_lengths(77));

  ThreadPool pool(2);  // shared by half of the callers
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int t = 0; t < kThreads; ++t) {
    callers.emplace_back([&, t] {
      AttentionOptions options;
      if (t % 2 == 0) options.executor = &pool;
      for (int call = 0; call < kCalls; ++call) {
        const Request& r = requests[static_cast<std::size_t>(t + call) % requests.size()];
        const auto result = scaled_dot_product_attention(r.in.q.view(), r.in.k.view(),
                                                         r.in.v.view(), r.mask, options);
        if (!same_bits(result.output.view(), r.expected.output.view())) ++wrong;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace test
}  // namespace attn
