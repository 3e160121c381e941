// One of two translation units of a program; this one includes Eigen first.
#include <Eigen/Dense>

#include "attn/attn.hpp"
//
#include "hygiene/smoke.hpp"

void smoke_attn_first();

int main() {
  attn::ThreadPool pool(2);
  smoke(&pool);
  smoke_attn_first();
}
