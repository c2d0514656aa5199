// Random matrices and vectors, each in memory of its own that ends where it ends.
#pragma once

#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels.h"

namespace localmoe {

using Floats = std::vector<float>;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();  // where nothing may be written

inline std::mt19937 random_bits(1);

inline Floats normal(size_t n) {
  std::normal_distribution<float> draw;
  Floats out(n);
  for (float& x : out) x = draw(random_bits);
  return out;
}

// Random weights; every FP8 code but the two of NaN, those with an exponent of zero in every fourth 64 only: kernels that look
// for them have something to do, and something to leave.
struct Weights {
  std::vector<uint8_t> data;
  Floats scale;
  Matrix matrix;

  Weights(int rows, int cols, WeightType type) {
    const size_t num = static_cast<size_t>(rows) * cols;
    const Floats values = normal(num);
    data.resize(num * (type == WeightType::fp8 ? 1 : type == WeightType::bf16 ? 2 : 4));
    for (size_t i = 0; i < num; ++i) {
      const unsigned least = i / 64 % 4 == 0 ? 0 : 8;
      if (type == WeightType::fp8) data[i] = static_cast<uint8_t>((least + random_bits() % (127 - least)) | random_bits() % 2 << 7);
      if (type == WeightType::bf16) std::memcpy(&data[2 * i], reinterpret_cast<const char*>(&values[i]) + 2, 2);
      if (type == WeightType::f32) std::memcpy(&data[4 * i], &values[i], 4);
    }
    scale = normal(static_cast<size_t>((rows + 127) / 128) * ((cols + 127) / 128));
    matrix = {data.data(), scale.data(), rows, cols, type};
  }
};

}  // namespace localmoe
