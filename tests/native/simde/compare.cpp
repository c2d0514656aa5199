// Every kernel of the one of TARGETS that the argument names against the scalar one, over odd shapes. Prints what
// differs; exits with 1 if any does.
#include "../tile_registers.h"
#include "kernels.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "../samples.h"

using namespace localmoe;

namespace {

constexpr double kBar = 2e-6;  // relative; FP32 sums in another order
// Where an activation is two BF16 terms: BF16's 8 significant bits leave out at most 2^-8 of x's power of two, and the
// second term at most 2^-9 of that, so each product is off by at most 2^-17 of itself. The errors are independent, so a
// sum is off by no more than that of its own norm.
constexpr double kSplit = 0x1p-17;
constexpr WeightType kTypes[] = {WeightType::fp8, WeightType::bf16, WeightType::f32};
constexpr const Kernels* kTargets[] = {TARGETS};

Kernels ours;

int failures = 0;

Floats nothing(size_t n) { return Floats(n, kNan); }

bool is_split(WeightType type) { return !std::strcmp(ours.name, "avx512_bf16") && type != WeightType::f32; }

void same(const std::string& what, const Floats& found, const Floats& truth, double bar) {
  double error = 0;
  double norm = 1e-60;
  bool outside = false;
  for (size_t i = 0; i < truth.size(); ++i) {
    outside |= std::isnan(found[i]) != std::isnan(truth[i]);
    if (std::isnan(truth[i])) continue;
    error += std::pow(static_cast<double>(found[i]) - truth[i], 2);
    norm += std::pow(static_cast<double>(truth[i]), 2);
  }
  if (!outside && std::sqrt(error / norm) <= bar) return;
  ++failures;
  std::printf("%s differs: %.1e%s\n", what.c_str(), std::sqrt(error / norm), outside ? ", or writes elsewhere" : "");
}

// Pointers to `num` rows of n floats.
template <class T>
std::vector<T*> rows_of(T* data, int num, size_t n) {
  std::vector<T*> rows;
  for (int i = 0; i < num; ++i) rows.push_back(data + i * n);
  return rows;
}

template <class Run>
void compare(const std::string& what, Run run, double bar = kBar) {
  same(what, run(ours), run(kScalarKernels), bar);
}

void compare_rows() {
  for (const int n : {1, 7, 15, 16, 17, 47, 576}) {
    const std::string at = " of " + std::to_string(n);
    Floats x = normal(n);
    const Floats y = normal(n);
    const auto row = [&](const char* name, auto op) {
      compare(name + at, [&](const Kernels& k) {
        Floats out = nothing(n + 16);
        op(k, out.data());
        return out;
      });
    };
    row("rms_norm", [&](const Kernels& k, float* out) { k.rms_norm(x.data(), y.data(), 1e-6F, out, n); });
    row("add", [&](const Kernels& k, float* out) { k.add(x.data(), y.data(), out, n); });
    row("add_scaled", [&](const Kernels& k, float* out) {
      std::memcpy(out, x.data(), n * sizeof(float));
      k.add_scaled(out, y.data(), 0.7F, n);
    });
    row("through bf16", [&](const Kernels& k, float* out) {
      std::vector<uint16_t> narrow(n);
      k.f32_to_bf16(x.data(), narrow.data(), n);
      k.bf16_to_f32(narrow.data(), out, n);
    });
    for (float& gate : x) gate *= 40;  // exp's both ends
    row("silu_mul", [&](const Kernels& k, float* out) { k.silu_mul(x.data(), y.data(), out, n); });
  }
}

// gemv from the third row to the last but four or, where reading on leaves the memory, to the last; gevm with as many.
void compare_vectors(const Matrix& m, const std::string& at) {
  const int row0 = 3;
  for (int tokens = 1; tokens <= kMaxGemvTokens; ++tokens) {
    const int row1 = m.rows - tokens % 2 * 4;
    const std::string what = ", " + std::to_string(tokens) + at;
    const Floats x = normal(static_cast<size_t>(tokens) * m.cols);
    compare("gemv" + what, [&](const Kernels& k) {
      Floats prepared = nothing(static_cast<size_t>(tokens) * padded(m.cols));
      Floats y = nothing(static_cast<size_t>(tokens) * m.rows);
      for (int t = 0; t < tokens; ++t) {
        float* out = &prepared[t * padded(m.cols)];
        const int piece = t % 2 ? std::min(m.cols, 64) : m.cols;
        k.gemv_prepare(&x[t * m.cols], piece, m.type, out);
        if (piece < m.cols) k.gemv_prepare(&x[t * m.cols + piece], m.cols - piece, m.type, out + piece);
      }
      const auto rows = rows_of<const float>(prepared.data(), tokens, padded(m.cols));
      k.gemv(m, row0, row1, rows.data(), tokens, rows_of(y.data(), tokens, m.rows).data());
      return y;
    }, is_split(m.type) ? kBar + kSplit : kBar);
    const Floats down = normal(static_cast<size_t>(tokens) * (row1 - row0));
    compare("gevm" + what, [&](const Kernels& k) {
      Floats y = nothing(static_cast<size_t>(tokens) * m.cols);
      const auto rows = rows_of<const float>(down.data(), tokens, row1 - row0);
      k.gevm(m, row0, row1, rows.data(), tokens, rows_of(y.data(), tokens, m.cols).data());
      return y;
    });
  }
}

// A strip of a product in three pieces, in any order and with no numbers beside its tokens, then gemm over the last `rows` rows.
void compare_product(const Matrix& m, int rows, int tokens, const std::string& at) {
  const int row0 = m.rows - rows;
  Floats c = normal(static_cast<size_t>(m.cols) * kStrip);
  for (size_t i = 0; i < c.size(); ++i) {
    if (static_cast<int>(i % kStrip) >= tokens) c[i] = kNan;
  }
  compare("pack_product, " + std::to_string(tokens) + at, [&](const Kernels& k) {
    Floats packed = nothing(k.strip_floats(m.cols, m.type));
    Floats out = nothing(static_cast<size_t>(rows) * kStrip);
    Floats scratch = nothing(k.gemm_scratch_floats());
    const int borders[] = {0, m.cols / 3, m.cols / 3 + m.cols / 5, m.cols};
    for (int piece : {2, 0, 1}) {
      const int from = borders[piece];
      k.pack_product(&c[from * kStrip], borders[piece + 1] - from, from, tokens, m.cols, m.type, packed.data());
    }
    k.gemm(m, row0, m.rows, packed.data(), tokens, out.data(), static_cast<ptrdiff_t>(out.size()), scratch.data());
    for (size_t i = 0; i < out.size(); ++i) {
      if (static_cast<int>(i % kStrip) >= tokens) out[i] = 0;
    }
    return out;
  });
}

// pack, gemm over the last `rows` rows, unpack.
void compare_gemm(const Matrix& m, int rows, int tokens, const std::string& at) {
  const int row0 = m.rows - rows;
  const int strips = (tokens + kStrip - 1) / kStrip;
  const size_t out_strip = static_cast<size_t>(rows) * kStrip;
  const Floats x = normal(static_cast<size_t>(tokens) * m.cols);
  compare("gemm, " + std::to_string(tokens) + at, [&](const Kernels& k) {
    const auto in = rows_of<const float>(x.data(), tokens, m.cols);
    const size_t packed_strip = k.strip_floats(m.cols, m.type);
    Floats packed = nothing(strips * packed_strip);
    Floats out = nothing(strips * out_strip);
    Floats scratch = nothing(k.gemm_scratch_floats());
    Floats y = nothing(static_cast<size_t>(tokens) * m.rows);
    auto to = rows_of(y.data(), tokens, m.rows);
    for (int s = 0; s < strips; ++s) {
      k.pack(&in[s * kStrip], std::min(kStrip, tokens - s * kStrip), m.cols, m.type, &packed[s * packed_strip]);
    }
    k.gemm(m, row0, m.rows, packed.data(), tokens, out.data(), out_strip, scratch.data());
    for (int s = 0; s < strips; ++s) {
      k.unpack(&out[s * out_strip], rows, std::min(kStrip, tokens - s * kStrip), &to[s * kStrip], row0);
    }
    const int half = (m.rows - row0) / 2;  // then again, as the second of a pair
    k.gemm_pair(m, m, row0, row0 + half, packed.data(), tokens, out.data(), out_strip, scratch.data());
    for (int s = 0; s < strips; ++s) {
      k.unpack(&out[s * out_strip + half * kStrip], half, std::min(kStrip, tokens - s * kStrip), &to[s * kStrip], row0);
    }
    return y;
  });
}

void compare_products() {
  for (const WeightType type : kTypes) {
    for (const int cols : {1, 15, 33, 129, 200, 237, 576}) {
      const Weights w(70, cols, type);
      const std::string at = " tokens, " + std::to_string(cols) + " columns of type " + std::to_string(static_cast<int>(type));
      compare_vectors(w.matrix, at);
      for (const int tokens : {1, 5, 6, 15, 16, 19, 24, 40}) compare_gemm(w.matrix, tokens + 8, tokens, at);
      for (const int tokens : {2, 5, 7, 16}) compare_product(w.matrix, 40, tokens, at);
    }
  }
}

// Rows together and each by itself, to the bit: no result depends on who takes which rows.
void compare_splits() {
  for (const WeightType type : kTypes) {
    for (const int cols : {200, 1408}) {
      const Weights w(23, cols, type);
      for (int tokens = 1; tokens <= kMaxGemvTokens; ++tokens) {
        const Floats x = normal(static_cast<size_t>(tokens * cols));
        Floats prepared(static_cast<size_t>(tokens * padded(cols)));
        Floats together(static_cast<size_t>(tokens * 23)), alone = together;
        const float* rows[kMaxGemvTokens];
        float *to[kMaxGemvTokens], *to_alone[kMaxGemvTokens];
        for (int t = 0; t < tokens; ++t) {
          ours.gemv_prepare(&x[t * cols], cols, type, &prepared[t * padded(cols)]);
          rows[t] = &prepared[t * padded(cols)];
          to[t] = &together[t * 23];
          to_alone[t] = &alone[t * 23];
        }
        ours.gemv(w.matrix, 0, 23, rows, tokens, to);
        for (int row = 0; row < 23; ++row) ours.gemv(w.matrix, row, row + 1, rows, tokens, to_alone);
        if (!std::memcmp(together.data(), alone.data(), together.size() * sizeof(float))) continue;
        ++failures;
        std::printf("%d tokens, %d columns of type %d: rows differ when they are alone\n", tokens, cols, static_cast<int>(type));
      }
    }
  }
}

// One code a matrix, times 1: the very value.
void compare_codes() {
  for (int code = 0; code < 256; ++code) {
    if ((code & 127) == 127) continue;
    uint8_t data[40] = {};
    data[code % 40] = static_cast<uint8_t>(code);
    const Floats x(40, 1.0F);
    const float scale = 1;
    float value[2];
    for (const Kernels* k : {static_cast<const Kernels*>(&ours), &kScalarKernels}) {
      Floats prepared(padded(40));
      k->gemv_prepare(x.data(), 40, WeightType::fp8, prepared.data());
      const float* row = prepared.data();
      float* y = &value[k != &ours];
      k->gemv({data, &scale, 1, 40, WeightType::fp8}, 0, 1, &row, 1, &y);
    }
    if (value[0] == value[1]) continue;
    ++failures;
    std::printf("code %d is %g, not %g\n", code, value[0], value[1]);
  }
}

// Any activation, times 1: itself, or the sum of its two terms.
void compare_activations() {
  const float weight = 1;
  uint8_t fp8 = 0x38;
  uint16_t bf16 = 0x3f80;
  const void* data[] = {&fp8, &bf16, &weight};
  // Those for AMD keep 120 powers of two of the weights with the activations and the sums.
  const bool is_narrow = std::strstr(ours.name, "_zen") != nullptr;
  const Floats magnitudes = is_narrow ? Floats{1e-15F, 1.0F, 1e18F} : Floats{1e-28F, 1.0F, 1e30F};
  for (const WeightType type : kTypes) {
    for (const float magnitude : magnitudes) {
      for (const float x : normal(1000)) {
        const float factor = x * magnitude;
        Floats prepared(padded(1));
        ours.gemv_prepare(&factor, 1, type, prepared.data());
        const float* row = prepared.data();
        float product;
        float* y = &product;
        ours.gemv({data[static_cast<int>(type)], &weight, 1, 1, type}, 0, 1, &row, 1, &y);
        if (std::abs(product - factor) <= (is_split(type) ? kSplit * std::abs(factor) : 0)) continue;
        ++failures;
        std::printf("activation %g comes out as %g by type %d\n", factor, product, static_cast<int>(type));
      }
    }
  }
}

// A page whose other rows are no numbers, twice: the second time nothing is larger.
void compare_decode_attention(int heads, int rank, bool bf16) {
  const int rope = 6;
  const int width = rank + rope;
  const int num = std::min(kPage, 7 * heads + 3);
  const Floats q = normal(static_cast<size_t>(heads) * width);
  Floats keys = normal(static_cast<size_t>(num) * width);
  keys.resize(static_cast<size_t>(kPage) * width, kNan);
  std::vector<uint16_t> narrow(keys.size());
  kScalarKernels.f32_to_bf16(keys.data(), narrow.data(), static_cast<int>(keys.size()));
  const void* rows = bf16 ? static_cast<const void*>(narrow.data()) : keys.data();
  const std::string at = std::to_string(heads) + " heads, rank " + std::to_string(rank) + (bf16 ? ", BF16" : "");
  compare("attend_latent, " + at, [&](const Kernels& k) {
    const size_t strip = k.head_strip_floats(width);
    Floats packed((heads + kStrip - 1) / kStrip * strip);
    for (int h = 0; h < heads; h += kStrip) {
      const auto in_strip = rows_of(&q[static_cast<size_t>(h) * width], std::min(kStrip, heads - h), width);
      k.pack_heads(in_strip.data(), static_cast<int>(in_strip.size()), width, bf16, &packed[h / kStrip * strip]);
    }
    Floats m(kHeads, -std::numeric_limits<float>::infinity());
    Floats l(kHeads);
    Floats acc(static_cast<size_t>(heads) * rank);
    Floats scratch(keys.size());
    for (int page = 0; page < 2; ++page) {
      k.attend_latent({packed.data(), heads, rank, rope, rows, bf16, num, 0.05F, {m.data(), l.data(), acc.data()}, nullptr, 0, scratch.data()});
    }
    acc.insert(acc.end(), l.begin(), l.begin() + heads);
    return acc;
  });
}

// A block of queries against two spans of 70 and 150 keys, the last of them the queries' own.
void compare_prefill(int num, int head, int v) {
  const int spans[] = {70, 150};
  const int strips = (v + kStrip - 1) / kStrip;
  const size_t room = 160;  // keys of a span, in whole strips
  const Floats q = normal(static_cast<size_t>(num) * (head + 3));
  const Floats keys = normal(2 * room * head);
  const Floats values = normal(2 * room * strips * kStrip);
  compare("attend_queries, " + std::to_string(num) + " queries of " + std::to_string(head), [&](const Kernels& k) {
    Floats out = nothing(static_cast<size_t>(num) * (v + 1));
    Floats m(num);
    Floats l(num);
    Floats scratch(k.attend_queries_scratch_floats(head, v));
    for (int span = 0; span < 2; ++span) {
      k.attend_queries({q.data(), head + 3, out.data(), v + 1, m.data(), l.data(), num, span * num, span == 0,
                        span == 0 ? spans[0] : spans[1] - num + 1, &keys[span * room * head],
                        &values[span * room * strips * kStrip], room, spans[span], head, v, 0.1F, scratch.data()});
    }
    return out;
  });
}

}  // namespace

int main(int, char** names) {
  ask_for_tile_registers();
  for (const Kernels* k : kTargets) {
    if (!std::strcmp(k->name, names[1])) ours = *k;
  }
  if (ours.name == nullptr) return 2;
  compare_rows();
  compare_codes();
  compare_activations();
  compare_products();
  compare_splits();
  for (const int rank : {512, 40, 7}) {
    for (const bool bf16 : {false, true}) {
      for (int heads = 1; heads <= kStrip; ++heads) compare_decode_attention(heads, rank, bf16);
      for (const int heads : {17, 31, 32}) compare_decode_attention(heads, rank, bf16);
    }
  }
  for (const int num : {1, 5, 48}) {
    compare_prefill(num, 26, 13);
    compare_prefill(num, 192, 128);
  }
  std::printf("%d differences\n", failures);
  return failures > 0 ? 1 : 0;
}
