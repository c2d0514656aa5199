// Every op through a step program, on every target of TARGETS, for the sanitizers: `ops EVERY FIRST` runs each
// EVERY-th case of the op x shape matrix from the FIRST on. Weights, caches and outputs end where their memory ends, and
// a sanitized program.cpp forbids what lies behind its scratch. Prints what differs from the scalar target.
#include "../tile_registers.h"
#include "ops/ops.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>

#include "../samples.h"

using namespace localmoe;

namespace {

constexpr const Kernels* kTargets[] = {TARGETS};
// FP32 sums in another order, and what an activation loses as two BF16 terms.
constexpr double kBar = 3e-5;

int every, first;
int num_cases = 0;
int num_run = 0;
int failures = 0;

bool is_chosen() {
  const bool chosen = num_cases++ % every == first;
  num_run += chosen;
  return chosen;
}

// Copies the caller's rows into the program.
class Given : public Op {
 public:
  Given(const Floats& data, Rows out) : data_(data), out_(out) {}
  int begin(int /*stage*/, Run& run) override {
    for (int i = 0; i < run.num_tokens; ++i) std::copy_n(&data_[static_cast<size_t>(i) * out_.width], out_.width, out_.row(run, i));
    return 0;
  }
  void run_tile(int /*stage*/, int /*tile*/, int /*worker*/, Run& /*run*/) override {}

 private:
  const Floats& data_;
  Rows out_;
};

// A program of a few ops and the plan of its arena.
struct Recorder {
  Program program;
  int tokens;
  size_t arena = 0;
  std::vector<ExpertWindow> groups;  // for the last op, one after the other; none: all of it is one run

  Recorder(int tokens, const Kernels& kernels) : program(tokens, kernels), tokens(tokens) {}

  Rows value(int width) {
    const Rows rows{static_cast<ptrdiff_t>(arena), width, width};
    arena += static_cast<size_t>(tokens) * width;
    return rows;
  }
  Rows given(const Floats& data) {
    const Rows rows = value(static_cast<int>(data.size()) / tokens);
    program.append(std::make_unique<Given>(data, rows));
    return rows;
  }
};

// The sessions of a run: tokens in the cache before, new tokens.
using Sessions = std::vector<std::pair<int, int>>;

using Record = std::function<void(Recorder&, Rows out)>;

Floats outcome(const Kernels& kernels, Pool& pool, const Sessions& sessions, int width, const Record& record) {
  Run run;
  std::vector<std::vector<int32_t>> tables;
  for (const auto& [start, count] : sessions) {
    tables.emplace_back(static_cast<size_t>((start + count + kPage - 1) / kPage));
    std::iota(tables.back().begin(), tables.back().end(), run.segments.empty() ? 0 : 3);  // up to 3 pages each
    run.segments.push_back({run.num_tokens, count, start, tables.back().data()});
    run.num_tokens += count;
  }
  const std::vector<int32_t> ids(static_cast<size_t>(run.num_tokens), 4);
  run.ids = ids.data();
  run.selected.resize(static_cast<size_t>(run.num_tokens));
  std::iota(run.selected.begin(), run.selected.end(), 0);
  Floats out(static_cast<size_t>(run.num_tokens) * width, kNan);
  run.logits = out.data();
  Recorder recorder(run.num_tokens, kernels);
  record(recorder, {Rows::kLogits, width, width});
  recorder.program.plan(recorder.arena, pool.num_workers(), {});
  Program& program = recorder.program;
  if (!recorder.groups.empty()) run.end_op = program.num_ops() - 1;
  program.forward(pool, true, nullptr, run);
  run.first_op = program.num_ops() - 1;
  run.end_op = program.num_ops();
  for (const ExpertWindow& window : recorder.groups) {
    run.window = window;
    program.forward(pool, true, nullptr, run);
  }
  return out;
}

void check(const std::string& what, const Sessions& sessions, int width, const Record& record) {
  static Pool pool({-1, -1});
  const Floats truth = outcome(kScalarKernels, pool, sessions, width, record);
  for (const Kernels* kernels : kTargets) {
    const Floats found = outcome(*kernels, pool, sessions, width, record);
    double error = 0;
    double norm = 1e-60;
    for (size_t i = 0; i < truth.size(); ++i) {
      error += std::pow(static_cast<double>(found[i]) - truth[i], 2);
      norm += std::pow(static_cast<double>(truth[i]), 2);
    }
    if (std::sqrt(error / norm) <= kBar) continue;
    ++failures;
    std::printf("%s on %s differs by %.1e\n", what.c_str(), kernels->name, std::sqrt(error / norm));
  }
}

std::string named(const char* op, std::initializer_list<int> shape) {
  std::string name = op;
  for (const int n : shape) name += " " + std::to_string(n);
  return name;
}

constexpr int kTokens[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 33, 48};
constexpr WeightType kTypes[] = {WeightType::fp8, WeightType::bf16, WeightType::f32};

void check_linear() {
  constexpr std::pair<int, int> kShapes[] = {{1, 1}, {5, 31}, {49, 127}, {130, 200}, {51, 1408}, {176, 7}, {300, 576}};
  for (const auto& [rows, cols] : kShapes) {
    for (const WeightType type : kTypes) {
      for (const int tokens : kTokens) {
        if (!is_chosen()) continue;
        const Weights w(rows, cols, type);
        const Floats x = normal(static_cast<size_t>(tokens) * cols);
        check(named("linear", {rows, cols, static_cast<int>(type), tokens}), {{0, tokens}}, rows,
              [&](Recorder& r, Rows out) { r.program.append(make_linear(r.given(x), w.matrix, out)); });
      }
    }
  }
}

void check_rows() {
  for (const int width : {1, 7, 33, 200, 1408}) {
    for (const int tokens : {1, 8, 48}) {
      if (!is_chosen()) continue;
      const Sessions sessions{{0, tokens}};
      const Floats x = normal(static_cast<size_t>(tokens) * width);
      const Floats y = normal(static_cast<size_t>(tokens) * width);
      const Weights table(5, width, WeightType::bf16);
      const auto row = [&](const char* op, const Record& record) { check(named(op, {width, tokens}), sessions, width, record); };
      row("embedding", [&](Recorder& r, Rows out) { r.program.append(make_embedding(table.matrix, out)); });
      row("rms_norm", [&](Recorder& r, Rows out) { r.program.append(make_rms_norm(r.given(x), y.data() + y.size() - width, 1e-6F, out)); });
      row("add", [&](Recorder& r, Rows out) { r.program.append(make_add(r.given(x), r.given(y), out)); });
      row("silu_mul", [&](Recorder& r, Rows out) { r.program.append(make_silu_mul(r.given(x), r.given(y), out)); });
      row("select", [&](Recorder& r, Rows out) { r.program.append(make_select(r.given(x), out)); });
      if (width < 2) continue;
      for (const bool interleaved : {false, true}) {
        row("rope", [&](Recorder& r, Rows out) {
          const Rows rotated = r.given(x);
          const int half = std::min(3, width / 2);
          const int turns = r.program.add_rope(Floats(static_cast<size_t>(half), 0.1F), 1.0F);
          r.program.append(make_rope(rotated, turns, interleaved, width, 2 * half));
          r.program.append(make_select(rotated, out));
        });
      }
    }
  }
}

// The experts of a layer in one block, an expert's matrices and scales one right behind the other.
struct ExpertWeights {
  static constexpr int kNum = 5;
  std::vector<uint8_t> data;
  ExpertPart part;

  ExpertWeights(int hidden, int inter, WeightType type) {
    std::vector<Weights> all;
    for (int e = 0; e < kNum; ++e) {
      for (const auto& [rows, cols] : {std::pair{inter, hidden}, {inter, hidden}, {hidden, inter}}) all.emplace_back(rows, cols, type);
    }
    size_t stride = 0;
    ExpertMatrix* matrices[] = {&part.gate, &part.up, &part.down};
    for (int m = 0; m < 3; ++m) {
      Matrix shape = all[static_cast<size_t>(m)].matrix;
      shape.data = shape.scale = nullptr;
      const size_t scale_offset = (stride + all[static_cast<size_t>(m)].data.size() + 3) / 4 * 4;
      *matrices[m] = {stride, scale_offset, 0, shape};
      stride = scale_offset + all[static_cast<size_t>(m)].scale.size() * sizeof(float);
    }
    data.resize(kNum * stride);
    for (int n = 0; n < 3 * kNum; ++n) {
      const Weights& w = all[static_cast<size_t>(n)];
      uint8_t* expert = &data[n / 3 * stride];
      std::copy(w.data.begin(), w.data.end(), expert + matrices[n % 3]->offset);
      std::memcpy(expert + matrices[n % 3]->scale_offset, w.scale.data(), w.scale.size() * sizeof(float));
    }
    part.data = data.data();
    part.stride = stride;
    part.num_experts = kNum;
  }
};

void check_experts() {
  constexpr std::pair<int, int> kShapes[] = {{32, 16}, {96, 176}, {130, 50}, {200, 7}, {51, 200}};
  constexpr int kTopK = 2;
  for (const auto& [hidden, inter] : kShapes) {
    for (const WeightType type : {WeightType::fp8, WeightType::bf16}) {
      for (const int tokens : kTokens) {
        if (!is_chosen()) continue;
        const ExpertWeights experts(hidden, inter, type);
        const Floats x = normal(static_cast<size_t>(tokens) * hidden);
        Floats logits = normal(static_cast<size_t>(tokens) * ExpertWeights::kNum);
        for (size_t i = 3; i < logits.size(); i += ExpertWeights::kNum) logits[i] += 2;  // one is chosen by most tokens
        std::vector<int32_t> ids(static_cast<size_t>(tokens) * kTopK);
        check(named("experts", {hidden, inter, static_cast<int>(type), tokens}), {{0, tokens}}, hidden, [&](Recorder& r, Rows out) {
          const Rows given = r.given(x);
          const RoutingRows routing{ids.data(), 0, kTopK, r.value(kTopK)};
          r.program.append(make_route(r.given(logits), {ExpertWeights::kNum, kTopK, 1, 1, true, false, true, 2.5F, nullptr}, routing));
          r.program.append(make_experts(given, routing, {experts.part}, out));
        });
        std::vector<std::vector<uint8_t>> groups;  // each ends where its memory ends
        for (int first = 0; first < ExpertWeights::kNum; first += 3) {
          const int end = std::min(ExpertWeights::kNum, first + 3);
          groups.emplace_back(experts.data.begin() + first * static_cast<ptrdiff_t>(experts.part.stride), experts.data.begin() + end * static_cast<ptrdiff_t>(experts.part.stride));
        }
        check(named("groups of experts", {hidden, inter, static_cast<int>(type), tokens}), {{0, tokens}}, hidden, [&](Recorder& r, Rows out) {
          const Rows given = r.given(x);
          const RoutingRows routing{ids.data(), 0, kTopK, r.value(kTopK)};
          r.program.append(make_route(r.given(logits), {ExpertWeights::kNum, kTopK, 1, 1, true, false, true, 2.5F, nullptr}, routing));
          ExpertPart nowhere = experts.part;
          nowhere.data = nullptr;
          r.program.append(make_expert_group(given, routing, {nowhere}, out));
          for (size_t n = 0; n < groups.size(); ++n) {
            const int first = 3 * static_cast<int>(n);
            const int count = std::min(3, ExpertWeights::kNum - first);
            std::vector<int32_t> places;  // of every other group: the same, named one by one
            for (int e = 0; n % 2 == 1 && e < ExpertWeights::kNum; ++e) places.push_back(e >= first && e < first + count ? e - first : -1);
            std::vector<const uint8_t*> data;
            for (int e = 0; e < count; ++e) data.push_back(groups[n].data() + static_cast<size_t>(e) * experts.part.stride);
            r.groups.push_back({places.empty() ? first : 0, count, std::move(data), n == 0, std::move(places)});
          }
        });
      }
    }
  }
}

void check_route() {
  constexpr RouterShape kRouters[] = {{24, 8, 1, 1, true, true, true, 2.5F, nullptr}, {16, 4, 4, 2, true, true, true, 2.5F, nullptr},
                                      {12, 3, 3, 2, false, false, false, 16.0F, nullptr}, {6, 6, 1, 1, true, false, true, 1.0F, nullptr}};
  for (const RouterShape& router : kRouters) {
    for (const int tokens : {1, 17, 40}) {
      if (!is_chosen()) continue;
      const Floats logits = normal(static_cast<size_t>(tokens) * router.num_experts);
      const Floats bias = normal(static_cast<size_t>(router.num_experts));
      std::vector<int32_t> ids(static_cast<size_t>(tokens) * router.top_k);
      check(named("route", {router.num_experts, router.top_k, tokens}), {{0, tokens}}, router.top_k, [&](Recorder& r, Rows out) {
        RouterShape biased = router;
        biased.bias = bias.data();
        r.program.append(make_route(r.given(logits), biased, {ids.data(), 0, router.top_k, out}));
      });
    }
  }
}

void check_attention() {
  constexpr float kScale = 1e-4F;  // FP8 codes are large: a softmax of larger scores magnifies what sums in another order lose
  constexpr MlaShape kShapes[] = {{4, 32, 32, 64, 128, kScale}, {3, 20, 6, 13, 96, kScale}, {9, 1, 2, 1, 1, kScale}, {5, 16, 8, 16, 200, kScale}};
  const std::vector<Sessions> runs{{{0, 1}}, {{130, 3}}, {{63, 8}, {5, 1}}, {{0, 48}}, {{130, 9}, {5, 60}}, {{100, 17}}};
  for (const MlaShape& shape : kShapes) {
    for (const bool bf16 : {false, true}) {
      for (const WeightType type : {WeightType::fp8, WeightType::bf16}) {
        for (const Sessions& sessions : runs) {
          if (!is_chosen()) continue;
          int tokens = 0;
          int num_pages = 0;  // the last session's last page ends the cache
          for (const auto& [start, count] : sessions) {
            num_pages = (tokens == 0 ? 0 : 3) + (start + count + kPage - 1) / kPage;
            tokens += count;
          }
          num_pages = std::max(num_pages, (sessions[0].first + sessions[0].second + kPage - 1) / kPage);
          const Weights kv_b(shape.num_heads * (shape.nope_dim + shape.v_dim), shape.rank, type);
          const Floats q = normal(static_cast<size_t>(tokens * shape.num_heads) * (shape.nope_dim + shape.rope_dim));
          const Floats latent = normal(static_cast<size_t>(tokens) * shape.rank);
          const Floats key = normal(static_cast<size_t>(tokens) * shape.rope_dim);
          Floats cache = normal(static_cast<size_t>(num_pages) * kPage * (shape.rank + shape.rope_dim));
          std::vector<uint16_t> narrow(bf16 ? cache.size() : 0);
          if (bf16) kScalarKernels.f32_to_bf16(cache.data(), narrow.data(), static_cast<int>(cache.size()));
          const LatentPages pages{bf16 ? static_cast<void*>(narrow.data()) : cache.data(), bf16, shape.rank + shape.rope_dim};
          check(named("attention", {shape.num_heads, shape.rank, bf16, static_cast<int>(type), sessions[0].first, sessions[0].second}), sessions,
                shape.num_heads * shape.v_dim, [&](Recorder& r, Rows out) {
                  r.program.append(make_append_latent(pages, r.given(latent), r.given(key)));
                  r.program.append(make_mla_attention(r.given(q), pages, kv_b.matrix, shape, out));
                });
        }
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  ask_for_tile_registers();
  every = argc == 3 ? std::atoi(argv[1]) : 0;
  if (every < 1) {
    std::puts("usage: ops EVERY FIRST");
    return 2;
  }
  first = std::atoi(argv[2]) % every;
  check_linear();
  check_rows();
  check_experts();
  check_route();
  check_attention();
  std::printf("%d of %d cases, %d differences\n", num_run, num_cases, failures);
  return failures > 0 || num_run == 0 ? 1 : 0;
}
