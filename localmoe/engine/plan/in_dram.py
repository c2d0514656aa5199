"""What lies in DRAM, and on which of its NUMA nodes."""

from localmoe.engine.plan.asked import Asked, node_bytes
from localmoe.engine.plan.parts import DRAM, Decision, Item
from localmoe.engine.scheduler import MAX_BATCH
from localmoe.engine.scratch import scratch_bytes
from localmoe.model.config import ModelConfig
from localmoe.weights.layout import PART_ROWS


def weight_items(asked: Asked, *, routed_bytes: int | None = None) -> tuple[Item, ...]:
    """Resident weights: of the routed experts all, or `routed_bytes`."""
    weights = asked.weights
    routed = weights.routed if routed_bytes is None else routed_bytes
    return (
        Item(DRAM, "routed experts", routed, _by_rows(asked, routed)),
        Item(DRAM, "other weights", weights.other, _interleaved(asked, weights.other)),
        Item(DRAM, "embedding", weights.embedding, _interleaved(asked, weights.embedding)),
    )


def scratch_item(asked: Asked, num_threads: int, *chunks: int) -> Item:
    """Activations and scratch of decode's step program, and of those that read prompts, `chunks` tokens at once."""
    each = (scratch_bytes(asked.config, tokens, num_threads, asked.isa) for tokens in (MAX_BATCH, *chunks))
    return Item(DRAM, "scratch", sum(each))


def part(num: int) -> str:
    """One of `num` equal ones."""
    return {2: "half", 3: "a third", 4: "a quarter"}.get(num, f"1/{num}")


def numa_decisions(asked: Asked, items: tuple[Item, ...]) -> tuple[Decision, ...]:
    """How rows are split, and whether each node has room for its part; none where there is no choice of nodes."""
    if not asked.nodes:
        return ()
    num = len(asked.nodes)
    decision = Decision(
        "NUMA",
        f"rows over {num} nodes",
        f"each of nodes {', '.join(map(str, asked.nodes))} has {part(num)} of every expert's rows, and decoding reads"
        " all nodes at once; other weights are interleaved",
    )
    return (decision, *_full_nodes(asked, items))


def _full_nodes(asked: Asked, items: tuple[Item, ...]) -> tuple[Decision, ...]:
    free = node_bytes(asked.machine)
    taken = {node: 0 for node in asked.nodes}
    for item in items:
        for node, nbytes in item.nodes:
            taken[node] += nbytes
    return tuple(
        Decision(
            f"node {node}",
            f"{(nbytes - free[node]) / 1e9:,.1f} GB on other nodes",
            f"its part of the weights takes {nbytes / 1e9:,.1f} GB and it has {free[node] / 1e9:,.1f} GB: decoding"
            " reads the rest across the nodes' link",
        )
        for node, nbytes in taken.items()
        if node in free and nbytes > free[node]
    )


def _interleaved(asked: Asked, nbytes: int) -> tuple[tuple[int, int], ...]:
    """The same on every node."""
    num = len(asked.nodes)
    return tuple((node, nbytes * (n + 1) // num - nbytes * n // num) for n, node in enumerate(asked.nodes))


def _by_rows(asked: Asked, nbytes: int) -> tuple[tuple[int, int], ...]:
    """As `weights.layout` splits an expert's rows: a part begins at a multiple of PART_ROWS."""
    num, whole = len(asked.nodes), sum(_rows(asked.config, 0, 1))
    ends = [0]
    for n in range(num):
        ends.append(ends[-1] + sum(_rows(asked.config, n, num)))
    return tuple(
        (node, nbytes * ends[n + 1] // whole - nbytes * ends[n] // whole) for n, node in enumerate(asked.nodes)
    )


def _rows(config: ModelConfig, n: int, num: int) -> tuple[int, int, int]:
    """Weights of part `n` of `num` of an expert: of gate, up and down."""

    def rows(count: int) -> int:
        first, end = (min(count, -(-count // PART_ROWS) * part // num * PART_ROWS) for part in (n, n + 1))
        return end - first

    pair = rows(config.moe_inter) * config.hidden
    return pair, pair, rows(config.hidden) * config.moe_inter
