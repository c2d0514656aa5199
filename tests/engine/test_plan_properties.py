"""Whatever the machine: what is planned fits, rings have slots, and more memory never shortens a context."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from planned import FULL, GB, GPU_RATES, MOONLIGHT, RATES, gpus, machine, measured, planned

from localmoe.engine.plan import forecast
from localmoe.errors import OutOfMemoryError, UsageError
from localmoe.settings import Settings

MODELS = {"deepseek-v3": FULL, "moonlight": MOONLIGHT}
dram = st.integers(1, 1500).map(lambda n: n * GB)
vram = st.integers(1, 100).map(lambda n: n * GB)
models = st.sampled_from(sorted(MODELS))
contexts = st.none() | st.integers(1, 300_000)
kinds = st.sampled_from(["auto", "cpu", "slp", "dslp", "disk"])


@st.composite
def machines(draw):
    on = machine(
        draw(st.none() | dram),
        cores=draw(st.integers(1, 200)),
        gpus=gpus(*draw(st.lists(vram, max_size=4))),
        nodes=tuple(draw(st.lists(dram, max_size=4))),
        disk=draw(st.none() | dram),
    )
    locked = draw(st.none() | dram)
    return replace(on, limits=replace(on.limits, locks_freely=draw(st.booleans()), locked_bytes=locked))


@st.composite
def rates(draw):
    link = measured(10 ** draw(st.floats(8, 11)))
    disk = draw(st.none() | st.floats(7, 10.5).map(lambda n: measured(10**n)))
    return replace(RATES, gpus=(replace(GPU_RATES, h2d=link),) * 4, disk=disk)


def found(*arguments, **options):
    """A plan, or None where there is none."""
    try:
        return planned(*arguments, **options)
    except (OutOfMemoryError, UsageError) as error:
        assert error.message and error.hint
        return None


@given(machines(), rates(), models, contexts, kinds, st.integers(1, 8192), st.booleans())
@settings(max_examples=150, deadline=None)
def test_what_is_planned_fits(on, fast, model, context, kind, chunk, on_disk):
    asked = Settings(context=context, plan=kind, prefill_chunk=chunk)
    plan = found(on, MODELS[model], asked, fast, name=model, on_disk=on_disk)
    if plan is None:
        return
    assert kind in ("auto", plan.kind)
    assert all(item.num_bytes >= 0 for item in plan.items)
    assert all(plan.needed(place) <= plan.available.get(place, plan.needed(place)) for place in plan.places)
    for item in plan.items:
        assert not item.nodes or sum(nbytes for _, nbytes in item.nodes) == item.num_bytes
        assert all(nbytes >= 0 for _, nbytes in item.nodes)
    assert 1 <= plan.context_limit <= min(plan.longest_context, MODELS[model].max_position)
    assert context is None or plan.context_limit == min(context, MODELS[model].max_position)
    assert plan.num_pages * 64 >= plan.context_limit
    assert plan.num_threads >= 1 and 0 < plan.urgent_share <= 1
    if plan.alone_tokens is not None:
        assert len(plan.gpus) > 1 and plan.crossover_tokens <= plan.alone_tokens <= plan.pass_tokens
    assert (plan.ring is None) == (plan.kind == "cpu")
    if plan.ring:
        assert 2 <= plan.ring.slots <= MODELS[model].num_experts
        assert 1 <= plan.ring.group_experts <= plan.ring.slots // 2


@given(machines(), rates(), models, kinds)
@settings(max_examples=60, deadline=None)
def test_whatever_is_planned_can_be_forecast(on, fast, model, kind):
    plan = found(on, MODELS[model], Settings(plan=kind), fast, name=model)
    if plan is not None:
        prediction = forecast(plan, fast, MODELS[model], contexts=(plan.context_limit,), streams=(1,))
        if plan.kind == "disk" and fast.disk is None:
            assert prediction is None
            return
        assert all(p.ttft_s > 0 for p in prediction.prefill) and prediction.decode[0].tok_s > 0


@given(machines(), rates(), models, dram, st.lists(vram, min_size=4, max_size=4), st.booleans())
@settings(max_examples=150, deadline=None)
def test_more_memory_never_gives_a_shorter_context(on, fast, model, more, more_each, only_gpus):
    available = on.memory.usable_bytes
    if available is not None and not only_gpus:
        available += more
    larger = replace(
        on,
        memory=replace(on.memory, usable_bytes=available),
        gpus=tuple(replace(g, free_bytes=g.free_bytes + extra) for g, extra in zip(on.gpus, more_each, strict=False)),
    )
    before, after = (found(m, MODELS[model], None, fast, name=model) for m in (on, larger))
    if before is not None:
        assert after is not None and after.context_limit >= before.context_limit
