// tests/hygiene/mixed_march.hpp - what the two halves of attn_mixed_march hand to each other.
#pragma once

#include <vector>

#include "attn/tensor.hpp"

struct Parcel {
  attn::Tensor4Buffer<float> floats;
  std::vector<attn::Tensor4Buffer<double>> doubles;  // of all small sizes, aligned or not
};

/// Made in the file compiled with -march=native; also runs the smoke test there.
Parcel make_native();
/// Takes a parcel of the baseline file, grows it and frees what it held.
void grow_native(Parcel& parcel);
