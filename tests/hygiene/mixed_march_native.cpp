// The half of attn_mixed_march that is compiled with -march=native.
#include "hygiene/mixed_march.hpp"
#include "hygiene/smoke.hpp"

Parcel make_native() {
  smoke();
  Parcel parcel;
  parcel.floats = attn::Tensor4Buffer<float>({1, 2, 3, 5});
  parcel.floats(0, 1, 2, 4) = 7;
  for (attn::Index size = 0; size < 40; ++size)
    parcel.doubles.emplace_back(attn::Shape4{1, 1, 1, size});
  return parcel;
}

void grow_native(Parcel& parcel) {
  parcel.floats = attn::Tensor4Buffer<float>({2, 2, 30, 50});
  for (attn::Index size = 0; size < 40; ++size)
    parcel.doubles.emplace_back(attn::Shape4{1, 1, size, 3});
}
