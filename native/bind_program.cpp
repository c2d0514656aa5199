// Recording and running step programs. Every array is checked here; native code below trusts what it is given.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>

#include "bindings.h"
#include "isa.h"
#include "ops/ops.h"
#include "turns.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace localmoe {
namespace {

template <typename T, int N>
using Array = nb::ndarray<const T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
using AnyMatrix = nb::ndarray<nb::ro, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Logits = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void require(bool holds, const char* message) {
  if (!holds) throw std::invalid_argument(message);
}

WeightType type_of(nb::dlpack::dtype dtype) {
  if (dtype == nb::dtype<uint8_t>()) return WeightType::fp8;
  if (dtype == nb::dtype<uint16_t>()) return WeightType::bf16;
  require(dtype == nb::dtype<float>(), "weights are uint8 (FP8), uint16 (BF16) or float32");
  return WeightType::f32;
}

Matrix to_matrix(const AnyMatrix& weight, const std::optional<Array<float, 2>>& scale) {
  Matrix m;
  m.data = weight.data();
  m.rows = static_cast<int>(weight.shape(0));
  m.cols = static_cast<int>(weight.shape(1));
  m.type = type_of(weight.dtype());
  require((m.type == WeightType::fp8) == scale.has_value(), "FP8 weights need scales, other weights have none");
  if (scale) {
    require(static_cast<int>(scale->shape(0)) == ceil_div(m.rows, kBlock) && static_cast<int>(scale->shape(1)) == ceil_div(m.cols, kBlock),
            "scales are [ceil(rows / 128), ceil(cols / 128)]");
    m.scale = scale->data();
  }
  return m;
}

LatentPages to_pages(const nb::ndarray<nb::ndim<3>, nb::c_contig, nb::device::cpu>& data) {
  const bool bf16 = data.dtype() == nb::dtype<uint16_t>();
  require(bf16 || data.dtype() == nb::dtype<float>(), "the latent cache is float32 or uint16 (BF16)");
  require(data.shape(1) == kPage, "pages hold 64 tokens");
  return {data.data(), bf16, static_cast<int>(data.shape(2))};
}

ExpertMatrix to_expert_matrix(size_t offset, std::optional<size_t> scale_offset, int rows, int cols, bool bf16, int first_row) {
  require(bf16 != scale_offset.has_value(), "FP8 experts need scales, BF16 experts have none");
  require(rows >= 0 && cols >= 1 && first_row >= 0, "an expert's rows do not count below 0");
  Matrix shape;
  shape.rows = rows;
  shape.cols = cols;
  shape.type = bf16 ? WeightType::bf16 : WeightType::fp8;
  shape.scale_shift = first_row % kBlock;
  return {offset, scale_offset.value_or(0), first_row, shape};
}

size_t end_of(const ExpertMatrix& m) {
  const Matrix& s = m.shape;
  const size_t bytes = static_cast<size_t>(s.rows) * static_cast<size_t>(s.cols) * (s.type == WeightType::bf16 ? 2 : 1);
  const size_t scale_rows = static_cast<size_t>(s.rows > 0 ? ceil_div(s.scale_shift + s.rows, kBlock) : 0);
  const size_t scales = s.type == WeightType::fp8 ? sizeof(float) * scale_rows * static_cast<size_t>(ceil_div(s.cols, kBlock)) : 0;
  return std::max(m.offset + bytes, m.scale_offset + scales);
}

// The parts' rows of one matrix are all of its rows, in order, in one type; returns how many.
int require_whole(const std::vector<ExpertPart>& parts, ExpertMatrix ExpertPart::*matrix, int cols) {
  int rows = 0;
  for (const ExpertPart& part : parts) {
    const ExpertMatrix& m = part.*matrix;
    require(m.shape.cols == cols && m.shape.type == (parts[0].*matrix).shape.type, "the experts' shapes do not fit together");
    require(m.first_row == rows && (rows % kPartRows == 0 || m.shape.rows == 0), "parts of experts follow each other at multiples of 64 rows");
    require(end_of(m) <= part.stride, "an expert ends behind its stride");
    rows += m.shape.rows;
  }
  return rows;
}

void require_experts(const std::vector<ExpertPart>& parts, int hidden) {
  require(!parts.empty(), "experts need a part");
  for (const ExpertPart& part : parts) require(part.num_experts == parts[0].num_experts, "every part has rows of all experts");
  const int inter = require_whole(parts, &ExpertPart::gate, hidden);
  require(inter >= 1 && require_whole(parts, &ExpertPart::up, hidden) == inter && require_whole(parts, &ExpertPart::down, inter) == hidden,
          "the experts' shapes do not fit together");
  for (const ExpertPart& part : parts) {
    require(part.up.shape.rows == part.gate.shape.rows && part.up.shape.type == part.gate.shape.type, "a part has the same rows of gate and up");
  }
}

// An ExpertPart with the array that it points into.
struct PartArray {
  Array<uint8_t, 2> blob;
  ExpertMatrix gate, up, down;

  ExpertPart part() const { return {blob.data(), blob.shape(1), static_cast<int>(blob.shape(0)), gate, up, down}; }
};

// What is known of an op whose experts come in groups: what a window has to fit.
struct GroupOp {
  int op;
  int num_experts;
  std::vector<size_t> strides;  // of each part
  std::vector<size_t> ends;     // of each part: where the last row of an expert ends
};

using Bytes = Array<uint8_t, 1>;

using Places = Array<int32_t, 1>;

// Experts [first, first + count), or those with a place, as Python has them: of each part the bytes, one expert after
// the other; or, where they do not follow each other, of each part each expert's.
struct Group {
  int first;
  int count;
  std::vector<Bytes> data;
  bool overwrites;
  std::optional<Places> places;
};

using Word = nb::ndarray<int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// A word and the value that is waited for, or written.
struct Signal {
  Word word;
  int32_t value;
};

// turns.h's, as Python has it.
struct TurnOf {
  int first;
  int end;
  std::optional<Group> group;
  std::optional<Signal> waits;
  std::optional<Signal> tells;
};

void require_places(const Group& group, int num_experts) {
  require(group.first == 0 && group.places->shape(0) == static_cast<size_t>(num_experts), "each expert of the layer has a place, or -1");
  const int32_t* places = group.places->data();
  const auto is_place = [&](int32_t place) { return place >= -1 && place < group.count; };
  require(std::all_of(places, places + num_experts, is_place), "a group has no such place");
}

// A value that is filled, or read, between two runs of a program: keeps the room of both.
class Hold : public Op {
 public:
  int begin(int /*stage*/, Run& /*run*/) override { return 0; }
  void run_tile(int /*stage*/, int /*tile*/, int /*worker*/, Run& /*run*/) override {}
};

// Copies a caller's rows into the program: what tests and the self-test run ops on.
class Input : public Op {
 public:
  Input(const float* data, Rows out) : data_(data), out_(out) {}
  int begin(int /*stage*/, Run& run) override {
    for (int i = 0; i < run.num_tokens; ++i) std::copy_n(data_ + static_cast<ptrdiff_t>(i) * out_.width, out_.width, out_.row(run, i));
    return 0;
  }
  void run_tile(int /*stage*/, int /*tile*/, int /*worker*/, Run& /*run*/) override {}

 private:
  const float* data_;
  Rows out_;
};

// A program with the Python arrays that its ops point into.
class Recorded : public Program {
 public:
  Recorded(int max_tokens, const std::string& target) : Program(max_tokens, select_kernels(target)) {}

  template <typename Array>
  void keep(const Array& array) {
    kept_.emplace_back(array);
  }

  // Chosen experts of a layer, in a block that runs write and others read: on pages of its own, which can be locked.
  int32_t* expert_ids(int top_k) {
    constexpr size_t kPageBytes = 4096;
    const size_t count = static_cast<size_t>(max_tokens() * top_k);
    const size_t bytes = (count * sizeof(int32_t) + kPageBytes - 1) / kPageBytes * kPageBytes;
    void* const block = std::aligned_alloc(kPageBytes, bytes);
    if (block == nullptr) throw std::bad_alloc();
    expert_ids_.push_back({{static_cast<int32_t*>(block), &std::free}, count});
    std::fill_n(expert_ids_.back().ids.get(), count, 0);
    return expert_ids_.back().ids.get();
  }
  int num_routed() const { return static_cast<int>(expert_ids_.size()); }
  std::span<int32_t> routed(int layer) {
    const Chosen& chosen = expert_ids_.at(static_cast<size_t>(layer));
    return {chosen.ids.get(), chosen.count};
  }

  void append_group(std::unique_ptr<Op> op, int num_experts, std::vector<size_t> strides, std::vector<size_t> ends) {
    groups_.push_back({num_ops(), num_experts, std::move(strides), std::move(ends)});
    append(std::move(op));
  }
  bool has_groups() const { return !groups_.empty(); }
  // The window for ops [first, end); throws when one of them needs experts that `group` has not.
  ExpertWindow window(int first, int end, const std::optional<Group>& group) const {
    ExpertWindow window;
    for (const GroupOp& op : groups_) {
      if (op.op < first || op.op >= end) continue;
      require(group.has_value(), "experts that come in groups need a group");
      require(group->first >= 0 && group->count >= 1 && group->first + group->count <= op.num_experts, "the layer has no such experts");
      if (group->places) require_places(*group, op.num_experts);
      window.data = places(op, *group);
    }
    if (!group) return window;
    window.first = group->first;
    window.count = group->count;
    window.overwrites = group->overwrites;
    if (group->places) window.places.assign(group->places->data(), group->places->data() + group->places->shape(0));
    return window;
  }

 private:
  static std::vector<const uint8_t*> places(const GroupOp& op, const Group& group) {
    const size_t num_parts = op.strides.size(), count = static_cast<size_t>(group.count);
    std::vector<const uint8_t*> found;
    require(group.data.size() == num_parts || group.data.size() == num_parts * count, "a group has bytes of every part");
    const bool is_scattered = group.data.size() != num_parts;
    for (size_t p = 0; p < num_parts; ++p) {
      for (size_t e = 0; e < count; ++e) {
        const Bytes& data = group.data[is_scattered ? p * count + e : p];
        const size_t start = is_scattered ? 0 : e * op.strides[p];
        require(data.shape(0) >= start + op.ends[p], "a group's bytes end before its experts");
        found.push_back(data.data() + start);
      }
    }
    return found;
  }

  std::vector<GroupOp> groups_;
  std::vector<nb::ndarray<nb::ro>> kept_;
  struct Chosen {
    std::unique_ptr<int32_t, void (*)(void*)> ids;
    size_t count;
  };
  std::vector<Chosen> expert_ids_;
};

void require_segments(const Run& run, const Recorded& program, int covered, const Logits& logits) {
  require(run.num_tokens >= 1 && run.num_tokens <= program.max_tokens(), "more tokens than the program was recorded for");
  require(covered == run.num_tokens, "segments must cover all tokens");
  require(logits.shape(0) == run.selected.size(), "one row of logits per selected token");
}

// A run of some of the program's ops for given tokens.
Run run_of(Recorded& program, const Array<int32_t, 1>& ids, const Array<int32_t, 1>& starts, const Array<int32_t, 1>& counts,
           const Array<int32_t, 1>& tables, const Array<int32_t, 1>& table_starts, const Array<int32_t, 1>& selected, Logits& logits,
           const std::optional<Array<int32_t, 3>>& forced) {
  Run run;
  run.num_tokens = static_cast<int>(ids.shape(0));
  run.ids = ids.data();
  run.logits = logits.data();
  int covered = 0;
  for (size_t s = 0; s < counts.shape(0); ++s) {
    run.segments.push_back({covered, counts.data()[s], starts.data()[s], tables.data() + table_starts.data()[s]});
    covered += counts.data()[s];
  }
  run.selected.assign(selected.data(), selected.data() + selected.shape(0));
  for (const int32_t token : run.selected) require(token >= 0 && token < run.num_tokens, "no such token is selected");
  require_segments(run, program, covered, logits);
  if (forced) {
    require(static_cast<int>(forced->shape(0)) == program.num_routed() && static_cast<int>(forced->shape(1)) == run.num_tokens,
            "forced experts are [moe layers, tokens, K]");
    run.forced_experts = forced->data();
  }
  return run;
}

// Ops [first, end) of the program, for the same tokens in every run until all are through.
bool run_ops(Recorded& program, Pool& pool, int first, int end, const Array<int32_t, 1>& ids, const Array<int32_t, 1>& starts,
             const Array<int32_t, 1>& counts, const Array<int32_t, 1>& tables, const Array<int32_t, 1>& table_starts,
             const Array<int32_t, 1>& selected, Logits& logits, bool urgent, const Flag* cancel,
             const std::optional<Array<int32_t, 3>>& forced, const std::optional<Group>& group) {
  require(0 <= first && first <= end && end <= program.num_ops(), "the program has no such ops");
  Run run = run_of(program, ids, starts, counts, tables, table_starts, selected, logits, forced);
  run.first_op = first;
  run.end_op = end;
  run.window = program.window(first, end, group);
  nb::gil_scoped_release release;
  return program.forward(pool, urgent, cancel, std::move(run));
}

int32_t* word_of(const std::optional<Signal>& signal) {
  if (!signal) return nullptr;
  require(signal->word.shape(0) == 1, "a flag is one word");
  return signal->word.data();
}

// All turns of a step; see turns.h.
bool run_turns(Recorded& program, Pool& pool, const std::vector<TurnOf>& turns, int32_t base, const Array<int32_t, 1>& ids,
               const Array<int32_t, 1>& starts, const Array<int32_t, 1>& counts, const Array<int32_t, 1>& tables,
               const Array<int32_t, 1>& table_starts, const Array<int32_t, 1>& selected, Logits& logits, bool urgent, const Flag* cancel,
               const std::optional<Array<int32_t, 3>>& forced, nb::ndarray<double, nb::ndim<2>, nb::c_contig, nb::device::cpu>& times) {
  require(times.shape(0) == turns.size() && times.shape(1) == 2, "each turn has a begin and an end");
  const Run run = run_of(program, ids, starts, counts, tables, table_starts, selected, logits, forced);
  std::vector<Turn> taken;
  for (const TurnOf& turn : turns) {
    require(0 <= turn.first && turn.first <= turn.end && turn.end <= program.num_ops(), "the program has no such ops");
    taken.push_back({turn.first, turn.end, program.window(turn.first, turn.end, turn.group), word_of(turn.waits), turn.waits ? turn.waits->value : 0,
                     word_of(turn.tells), turn.tells ? turn.tells->value : 0});
  }
  double* const at = times.data();
  nb::gil_scoped_release release;
  return take_turns(program, pool, urgent, cancel, run, taken, base, at);
}

bool wait_for_word(const Word& word, int32_t value, double timeout) {
  require(word.shape(0) == 1, "a flag is one word");
  const int32_t* at = word.data();
  nb::gil_scoped_release release;
  return wait_word(at, value, nullptr, now_ns() + static_cast<int64_t>(timeout * 1e9), 0);
}

bool forward(Recorded& program, Pool& pool, const Array<int32_t, 1>& ids, const Array<int32_t, 1>& starts,
             const Array<int32_t, 1>& counts, const Array<int32_t, 1>& tables, const Array<int32_t, 1>& table_starts, Logits& logits,
             bool all_logits, bool urgent, const Flag* cancel, const std::optional<Array<int32_t, 3>>& forced) {
  require(!program.has_groups(), "experts that come in groups need a group");
  Run run;
  run.num_tokens = static_cast<int>(ids.shape(0));
  run.ids = ids.data();
  run.logits = logits.data();
  int first = 0;
  for (size_t s = 0; s < counts.shape(0); ++s) {
    run.segments.push_back({first, counts.data()[s], starts.data()[s], tables.data() + table_starts.data()[s]});
    first += counts.data()[s];
    if (!all_logits) run.selected.push_back(first - 1);
  }
  for (int t = 0; all_logits && t < run.num_tokens; ++t) run.selected.push_back(t);
  require_segments(run, program, first, logits);
  if (forced) {
    require(static_cast<int>(forced->shape(0)) == program.num_routed() && static_cast<int>(forced->shape(1)) == run.num_tokens,
            "forced experts are [moe layers, tokens, K]");
    run.forced_experts = forced->data();
  }
  nb::gil_scoped_release release;
  return program.forward(pool, urgent, cancel, std::move(run));
}

void bind_recording(nb::class_<Recorded>& c) {
  c.def("input", [](Recorded& p, const Array<float, 2>& data, Rows out) {
    p.keep(data);
    p.append(std::make_unique<Input>(data.data(), out));
  });
  c.def("embedding", [](Recorded& p, const AnyMatrix& table, Rows out) {
    p.keep(table);
    Matrix m = to_matrix(table, std::nullopt);
    p.append(make_embedding(m, out));
  });
  c.def("rms_norm", [](Recorded& p, Rows x, const Array<float, 1>& weight, float eps, Rows out) {
    require(static_cast<int>(weight.shape(0)) == out.width && x.width == out.width, "the norm's width differs");
    p.keep(weight);
    p.append(make_rms_norm(x, weight.data(), eps, out));
  });
  c.def("add", [](Recorded& p, Rows x, Rows y, Rows out) {
    require(x.width == y.width && x.width == out.width, "the sum's widths differ");
    p.append(make_add(x, y, out));
  });
  c.def("silu_mul", [](Recorded& p, Rows gate, Rows up, Rows out) {
    require(gate.width == up.width && gate.width == out.width, "the product's widths differ");
    p.append(make_silu_mul(gate, up, out));
  });
  c.def("widen", [](Recorded& p, Rows x, Rows out) {
    require(2 * x.width == out.width, "two BF16 lie in the place of a float");
    p.append(make_widen(x, out));
  });
  c.def("select", [](Recorded& p, Rows x, Rows out) { p.append(make_select(x, out)); });
  c.def("rope", [](Recorded& p, Rows x, const Array<float, 1>& inv_freq, float scale, bool interleaved, int head_dim) {
    const int dim = 2 * static_cast<int>(inv_freq.shape(0));
    require(head_dim >= dim && x.width % head_dim == 0, "heads do not fit the width");
    const int table = p.add_rope(std::vector<float>(inv_freq.data(), inv_freq.data() + inv_freq.shape(0)), scale);
    p.append(make_rope(x, table, interleaved, head_dim, dim));
  });
  c.def("append_latent", [](Recorded& p, const nb::ndarray<nb::ndim<3>, nb::c_contig, nb::device::cpu>& cache, Rows latent, Rows key) {
    const LatentPages pages = to_pages(cache);
    require(latent.width + key.width == pages.width, "the cache's rows are latent and key");
    p.keep(cache);
    p.append(make_append_latent(pages, latent, key));
  });
  c.def("linear", [](Recorded& p, Rows x, const AnyMatrix& weight, const std::optional<Array<float, 2>>& scale, Rows out) {
    const Matrix w = to_matrix(weight, scale);
    require(x.width == w.cols && out.width == w.rows, "the weight's shape does not fit");
    p.keep(weight);
    if (scale) p.keep(*scale);
    p.append(make_linear(x, w, out));
  }, "x"_a, "weight"_a, "scale"_a.none(), "out"_a);
  c.def("mla_attention", [](Recorded& p, Rows q, const nb::ndarray<nb::ndim<3>, nb::c_contig, nb::device::cpu>& cache,
                            const AnyMatrix& weight, const std::optional<Array<float, 2>>& scale, MlaShape shape, Rows out) {
    const Matrix kv_b = to_matrix(weight, scale);
    const LatentPages pages = to_pages(cache);
    require(q.width == shape.num_heads * (shape.nope_dim + shape.rope_dim) && out.width == shape.num_heads * shape.v_dim &&
                kv_b.rows == shape.num_heads * (shape.nope_dim + shape.v_dim) && kv_b.cols == shape.rank &&
                pages.width == shape.rank + shape.rope_dim,
            "attention's shapes do not fit together");
    p.keep(weight);
    p.keep(cache);
    if (scale) p.keep(*scale);
    p.append(make_mla_attention(q, pages, kv_b, shape, out));
  }, "q"_a, "cache"_a, "weight"_a, "scale"_a.none(), "shape"_a, "out"_a);
  c.def("route", [](Recorded& p, Rows logits, RouterShape router, const std::optional<Array<float, 1>>& bias, Rows weights) {
    require(logits.width == router.num_experts && weights.width == router.top_k && router.top_k <= router.num_experts &&
                router.num_groups >= 1 && router.num_experts % router.num_groups == 0,
            "the router's shapes do not fit together");
    if (bias) {
      require(static_cast<int>(bias->shape(0)) == router.num_experts, "one bias per expert");
      p.keep(*bias);
      router.bias = bias->data();
    }
    const int layer = p.num_routed();
    p.append(make_route(logits, router, {p.expert_ids(router.top_k), layer, router.top_k, weights}));
    return layer;
  }, "logits"_a, "router"_a, "bias"_a.none(), "weights"_a, "Returns the layer's number, counted over routed layers.");
  c.def("experts", [](Recorded& p, Rows x, int layer, Rows weights, const std::vector<PartArray>& arrays, Rows out) {
    std::vector<ExpertPart> parts;
    for (const PartArray& array : arrays) {
      p.keep(array.blob);
      parts.push_back(array.part());
    }
    require(x.width == out.width, "experts give as many columns as they take");
    require_experts(parts, x.width);
    const RoutingRows routing{p.routed(layer).data(), layer, weights.width, weights};
    p.append(make_experts(x, routing, std::move(parts), out));
  });
  c.def("expert_group", [](Recorded& p, Rows x, int layer, Rows weights, const std::vector<PartArray>& arrays, int num_experts, Rows out) {
    std::vector<ExpertPart> parts;
    std::vector<size_t> strides, ends;
    for (const PartArray& array : arrays) {
      parts.push_back(array.part());
      parts.back().num_experts = num_experts;
      strides.push_back(parts.back().stride);
      ends.push_back(std::max({end_of(array.gate), end_of(array.up), end_of(array.down)}));
    }
    require(x.width == out.width && num_experts >= 1, "experts give as many columns as they take");
    require_experts(parts, x.width);
    const RoutingRows routing{p.routed(layer).data(), layer, weights.width, weights};
    p.append_group(make_expert_group(x, routing, std::move(parts), out), num_experts, std::move(strides), std::move(ends));
  }, "x"_a, "layer"_a, "weights"_a, "parts"_a, "num_experts"_a, "out"_a,
     "The experts of a layer, a group at a time: of the parts only where rows lie in an expert's bytes counts.");
  c.def("hold", [](Recorded& p, Rows /*x*/, Rows /*out*/) { p.append(std::make_unique<Hold>()); }, "x"_a, "out"_a,
        "Computes nothing: between two runs that end and begin here, others read x and fill out.");
}

}  // namespace

void bind_program(nb::module_& m) {
  nb::class_<Rows>(m, "Rows", "Rows of a value in the program's arena; offset -1 is the caller's logits.")
      .def("__init__", [](Rows* self, ptrdiff_t offset, int stride, int width, bool selected) { new (self) Rows{offset, stride, width, selected}; },
           "offset"_a, "stride"_a, "width"_a, "selected"_a);
  nb::class_<MlaShape>(m, "MlaShape")
      .def("__init__", [](MlaShape* self, int heads, int nope, int rope, int v, int rank, float scale) {
        new (self) MlaShape{heads, nope, rope, v, rank, scale};
      });
  nb::class_<RouterShape>(m, "RouterShape")
      .def("__init__", [](RouterShape* self, int experts, int top_k, int groups, int top_groups, bool sigmoid, bool top2, bool normalize,
                          float scale) { new (self) RouterShape{experts, top_k, groups, top_groups, sigmoid, top2, normalize, scale, nullptr}; });
  nb::class_<ExpertMatrix>(m, "ExpertMatrix")
      .def("__init__", [](ExpertMatrix* self, size_t offset, std::optional<size_t> scale_offset, int rows, int cols, bool bf16,
                          int first_row) {
        new (self) ExpertMatrix(to_expert_matrix(offset, scale_offset, rows, cols, bf16, first_row));
      }, "offset"_a, "scale_offset"_a.none(), "rows"_a, "cols"_a, "bf16"_a, "first_row"_a = 0);
  nb::class_<PartArray>(m, "ExpertPart", "Rows of all experts that lie together: blob [E, stride] bytes and where the rows lie in each.")
      .def("__init__", [](PartArray* self, const Array<uint8_t, 2>& blob, ExpertMatrix gate, ExpertMatrix up, ExpertMatrix down) {
        new (self) PartArray{blob, gate, up, down};
      }, "blob"_a, "gate"_a, "up"_a, "down"_a);
  nb::class_<Group>(m, "ExpertGroup", "Experts [first, first + count), or those that have a place [E] (-1: none): of each part their bytes, one after the other; or of each part each expert's.")
      .def("__init__", [](Group* self, int first, int count, const std::vector<Bytes>& data, bool overwrites, const std::optional<Places>& places) {
        new (self) Group{first, count, data, overwrites, places};
      }, "first"_a, "count"_a, "data"_a, "overwrites"_a, "places"_a.none() = nb::none());
  nb::class_<Signal>(m, "Signal", "A word of memory [1] and a value of it, counted from a step's first.")
      .def("__init__", [](Signal* self, const Word& word, int32_t value) { new (self) Signal{word, value}; }, "word"_a, "value"_a);
  nb::class_<TurnOf>(m, "Turn", "Ops [first, end), begun at one signal, and another when they are through.")
      .def("__init__", [](TurnOf* self, int first, int end, const std::optional<Group>& group, const std::optional<Signal>& waits,
                          const std::optional<Signal>& tells) { new (self) TurnOf{first, end, group, waits, tells}; },
           "first"_a, "end"_a, "group"_a.none(), "waits"_a.none(), "tells"_a.none());
  m.def("wait_word", &wait_for_word, "word"_a, "value"_a, "timeout"_a, "Whether the word is at `value`, or above, within so many seconds.");
  nb::class_<Recorded> program(m, "Program", "The network's ops, recorded once, run for up to max_tokens tokens by one call.");
  program.def(nb::init<int, const std::string&>(), "max_tokens"_a, "target"_a)
      .def("plan", &Program::plan, "arena_floats"_a, "num_workers"_a, "worker_nodes"_a = std::vector<int>{})
      .def("go_early", &Program::go_early, "Its bulk runs go before those of other programs.")
      .def_prop_ro("target", [](const Recorded& p) { return std::string(p.kernels().name); })
      .def_prop_ro("progress", &Program::progress)
      .def_prop_ro("nbytes", &Program::nbytes)
      .def("routed", [](nb::handle_t<Recorded> self, int layer) {
        const std::span<int32_t> ids = nb::cast<Recorded&>(self).routed(layer);
        return nb::ndarray<nb::numpy, int32_t, nb::ndim<1>>(ids.data(), {ids.size()}, self);
      }, "layer"_a, "[max tokens * K]: the experts that were chosen in a routed layer, a view.")
      .def_prop_ro("arena", [](nb::handle_t<Recorded> self) {
        Recorded& program = nb::cast<Recorded&>(self);
        return nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(program.arena(), {program.arena_bytes()}, self);
      }, "Where its values lie.")
      .def_prop_ro("num_ops", &Program::num_ops)
      .def("view", [](nb::handle_t<Recorded> self, Rows rows, int count) {
        Recorded& program = nb::cast<Recorded&>(self);
        require(rows.offset >= 0 && count >= 0 && count <= program.max_tokens(), "the arena has no such rows");
        return nb::ndarray<nb::numpy, float, nb::ndim<2>>(program.row(rows, 0), {static_cast<size_t>(count), static_cast<size_t>(rows.width)},
                                                          self, {rows.stride, 1});
      }, "rows"_a, "count"_a, "[count, width]: rows of a value, for whoever reads or fills them between two runs.")
      .def("run", &run_ops, "pool"_a, "first"_a, "end"_a, "ids"_a, "starts"_a, "counts"_a, "tables"_a, "table_starts"_a, "selected"_a,
           "logits"_a, "urgent"_a, "cancel"_a.none(), "forced"_a.none(), "group"_a.none(),
           "Ops [first, end) only. Values stay in place from one run to the next; false when cancelled.")
      .def("take_turns", &run_turns, "pool"_a, "turns"_a, "base"_a, "ids"_a, "starts"_a, "counts"_a, "tables"_a, "table_starts"_a, "selected"_a,
           "logits"_a, "urgent"_a, "cancel"_a.none(), "forced"_a.none(), "times"_a,
           "All turns of a step that a device computes the rest of; `times` gets begin and end of each. False when cancelled.")
      .def("forward", &forward, "pool"_a, "ids"_a, "starts"_a, "counts"_a, "tables"_a, "table_starts"_a, "logits"_a, "all_logits"_a,
           "urgent"_a, "cancel"_a.none(), "forced"_a.none());
  bind_recording(program);
}

}  // namespace localmoe
