// error: conversion from
#include "attn/tensor.hpp"

int main() {
  const float data[1] = {};
  const attn::Tensor4<const float> readable(data, {1, 1, 1, 1});
#ifdef ATTN_EXPECT_ERROR
  const attn::Tensor4<float> copy = readable;
#else
  const attn::Tensor4<const float> copy = readable;
#endif
  return copy.heads() == 1;
}
