// error: conversion from
#include "attn/options.hpp"

int main() {
#ifdef ATTN_EXPECT_ERROR
  const attn::PerBatch lengths = 2.0;
#else
  const attn::PerBatch lengths = 2;
#endif
  return static_cast<int>(lengths[0]);
}
