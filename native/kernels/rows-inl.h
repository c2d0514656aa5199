// Row-wise kernels and what the others share: loops over lanes, exp.

constexpr int smaller(int a, int b) { return a < b ? a : b; }
constexpr size_t larger(size_t a, size_t b) { return a > b ? a : b; }

// body(i, Whole) for whole vectors of n elements, then body(i, Part) for the rest.
template <class Body>
KERNEL_INLINE void for_lanes(int n, Body body) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) body(i, Whole{});
  if (i < n) body(i, Part{n - i});
}

// exp to about one unit in the last place: x = n ln 2 + r, and a degree-6 polynomial in r (Cephes expf).
// 0 below -87.3 (-inf included), at most 2.4e38, NaN stays NaN.
KERNEL_INLINE Vec exponential(Vec x) {
  const Vec lowest = splat(-87.3f);
  const Vec clamped = min(splat(88.37f), max(lowest, x));
  const Vec n = round_nearest(clamped * splat(1.44269504f));
  Vec r = fma(n, splat(-0.693359375f), clamped);
  r = fma(n, splat(2.12194440e-4f), r);
  Vec p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  p = fma(p, r * r, r + splat(1.0f));
  return zero_below(p * power_of_two(n), x, lowest);
}

void rms_norm(const float* x, const float* weight, float eps, float* out, int n) {
  Vec squares = zeros();
  for_lanes(n, [&](int i, auto part) {
    const Vec v = load(x + i, part);
    squares = fma(v, v, squares);
  });
  const Vec inverse = splat(1.0f / square_root(sum_lanes(squares) / static_cast<float>(n) + eps));
  for_lanes(n, [&](int i, auto part) {
    store(out + i, load(x + i, part) * inverse * load(weight + i, part), part);
  });
}

void add(const float* x, const float* y, float* out, int n) {
  for_lanes(n, [&](int i, auto part) { store(out + i, load(x + i, part) + load(y + i, part), part); });
}

void add_scaled(float* y, const float* x, float a, int n) {
  const Vec factor = splat(a);
  for_lanes(n, [&](int i, auto part) { store(y + i, fma(load(x + i, part), factor, load(y + i, part)), part); });
}

void scale_row(float* y, float a, int n) {
  const Vec factor = splat(a);
  for_lanes(n, [&](int i, auto part) { store(y + i, load(y + i, part) * factor, part); });
}

void silu_mul(const float* gate, const float* up, float* out, int n) {
  for_lanes(n, [&](int i, auto part) {
    const Vec g = load(gate + i, part);
    store(out + i, g / (splat(1.0f) + exponential(zeros() - g)) * load(up + i, part), part);
  });
}

void bf16_to_f32(const uint16_t* x, float* out, int n) {
  for_lanes(n, [&](int i, auto part) { store(out + i, load_bf16(x + i, part), part); });
}

void f32_to_bf16(const float* x, uint16_t* out, int n) {
  for_lanes(n, [&](int i, auto part) { store_bf16(out + i, load(x + i, part), part); });
}
