// The other translation unit, which includes Eigen last.
#include "attn/attn.hpp"
//
#include "attn/reference.hpp"
#include "hygiene/smoke.hpp"
//
#include <Eigen/Dense>

void smoke_attn_first() {
  smoke();
  Eigen::MatrixXd matrix = Eigen::MatrixXd::Identity(3, 3);
  require(attn::view(matrix)(0, 0, 2, 2) == 1.0, "Eigen is usable after attn");
}
