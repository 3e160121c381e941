// The half of attn_mixed_march for the baseline CPU: frees what the native half made, and hands it
// what it made itself. (An Eigen::MatrixXf in the place of Tensor4Buffer aborts here.)
#include "hygiene/mixed_march.hpp"
#include "hygiene/smoke.hpp"

int main() {
  smoke();
  {
    const Parcel parcel = make_native();
    require(parcel.floats(0, 1, 2, 4) == 7.0f, "a buffer of the native half is readable");
  }
  Parcel parcel;
  parcel.floats = attn::Tensor4Buffer<float>({1, 1, 1, 3});
  for (attn::Index size = 0; size < 40; ++size)
    parcel.doubles.emplace_back(attn::Shape4{1, 1, 1, size});
  grow_native(parcel);
  parcel.doubles.clear();
}
