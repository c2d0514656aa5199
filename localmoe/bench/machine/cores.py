"""The cores and their DRAM: everything of the cost model that native code decides."""

from collections.abc import Callable
from typing import Any

from localmoe.bench.arithmetic import fma_peak
from localmoe.bench.kernel_program import Workers
from localmoe.bench.machine import kernels, memory
from localmoe.bench.machine.network import Network
from localmoe.bench.rows import Listener
from localmoe.engine.measured import Points
from localmoe.hardware import Machine, available_memory


def measure_cores(machine: Machine, workers: Workers, listener: Listener) -> dict[str, Any]:
    """Fields of `Measured`; those that memory does not allow are left out, and said."""
    threads = f"{workers.pool.num_workers} threads"
    listener.progress(f"FMA peak of {threads}, {workers.target}")
    found: dict[str, Any] = {"fma_flop_s": fma_peak(workers)}
    size = memory.table_bytes(machine, available_memory(), listener)
    if not size:
        return found
    table = memory.new_table(size)
    listener.progress(f"streaming read of {size / 1e6:,.0f} MB by {threads}")
    read = memory.StreamingRead(workers, table)
    found["stream_bytes_s"] = read.typical_rate()
    listener.progress("attention of a prompt and of one token")
    attention = kernels.prompt_attention_flop_s(workers)
    found["prompt_attention_flop_s"] = attention
    found["token_attention_flop_s"], found["latent_bytes_s"] = kernels.token_attention(workers, read.rate)
    listener.progress("a layer's overhead")
    layer_s = kernels.layer_s(workers, table)
    gemm = kernels.gemm_flop_s(workers, kernels.CHUNK)
    activations = kernels.activation_bytes_s(workers, table, gemm, attention)
    found |= {"layer_s": layer_s, "activation_bytes_s": activations}
    other = _beside_matrices(layer_s, attention, activations)
    found["fp8_flop_s"] = _points(workers, table, other, listener, is_bf16=False)
    memory.fill_with_bf16(table)
    found["read_fraction"] = kernels.gemv_share(workers, table, read.rate)
    found["bf16_flop_s"] = _points(workers, table, other, listener, is_bf16=True)
    del table, read
    return found | {"node_bytes_s": memory.node_rates(workers, size, listener)}


def _beside_matrices(
    layer_s: float, attention_flop_s: float, activation_bytes_s: float | None
) -> Callable[[Network, int], float]:
    """Seconds of a layer for so many tokens without its matrices."""

    def other_s(net: Network, num_tokens: int) -> float:
        if num_tokens == 1:
            return layer_s
        passed_s = num_tokens * net.activation_bytes / activation_bytes_s if activation_bytes_s else 0.0
        return layer_s + net.prompt_flops(num_tokens) / attention_flop_s + passed_s

    return other_s


def _points(
    workers: Workers, table: memory.Bytes, other: Callable[[Network, int], float], listener: Listener, *, is_bf16: bool
) -> Points:
    found = []
    for num_tokens in kernels.BF16_TOKENS if is_bf16 else kernels.FP8_TOKENS:
        kind = "BF16" if is_bf16 else "FP8"
        listener.progress(f"{kind} matrices of a small network times {num_tokens} token{'s' * (num_tokens > 1)}")
        flop_s = kernels.matmul_flop_s(workers, table, num_tokens, other, is_bf16=is_bf16)
        if flop_s is None:
            listener.warn(f"{kind} matrices are not measured: {table.size / 1e6:,.0f} MB hold no layer of them")
            return ()
        found.append((num_tokens, flop_s))
    return tuple(found)
