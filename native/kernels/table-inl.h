// The table that a target exports, filled with what the files before it define.

constexpr Kernels make_table(const char* name) {
  Kernels table{};
  table.name = name;
  table.rms_norm = rms_norm;
  table.add = add;
  table.add_scaled = add_scaled;
  table.silu_mul = silu_mul;
  table.bf16_to_f32 = bf16_to_f32;
  table.f32_to_bf16 = f32_to_bf16;
  table.gemv_prepare = gemv_prepare;
  table.gemv = gemv;
  table.gevm = gevm;
  table.gemv_tokens = gemv_tokens;
  table.pair_rows = pair_rows;
  table.strip_floats = strip_floats;
  table.strips_kept = strips_kept;
  table.pack = pack;
  table.pack_product = pack_product;
  table.gemm = gemm;
  table.gemm_pair = gemm_pair;
  table.unpack = unpack;
  table.gemm_scratch_floats = gemm_scratch_floats;
  table.head_strip_floats = head_strip_floats;
  table.pack_heads = pack_heads;
  table.attend_latent = attend_latent;
  table.attend_queries = attend_queries;
  table.attend_queries_scratch_floats = attend_queries_scratch_floats;
  return table;
}
