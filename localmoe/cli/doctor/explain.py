"""How predictions come about: the model of cost, term by term, and beside it the SLP paper's machine."""

from collections.abc import Iterator
from dataclasses import replace
from textwrap import wrap

from localmoe.cli.doctor.page import WIDTH
from localmoe.engine.cost.placement import Placement
from localmoe.engine.cost.predict import CONTEXTS, PROMPTS, Prediction, forecast_decode, forecast_prefill
from localmoe.engine.cost.rates import Rates
from localmoe.engine.cost.slp_paper import CHUNK, localmoe_rates, paper_rates
from localmoe.engine.cost.term import Term
from localmoe.hub.catalog import load_catalog
from localmoe.model.config import ModelConfig, read_config
from localmoe.tui.forecasts import duration, kilo, speed

PAPERS_SHAPE = "deepseek-r1"  # the model that the paper measured
NUM_GPUS = (1, 2)
_CELLS = " {:<13}" + "{:>16}" * 4


def explain_lines(prediction: Prediction, config: ModelConfig) -> Iterator[str]:
    """The terms of every prompt and of one stream's step; for a model of DeepSeek-R1's shape also the paper's."""
    for prefill in prediction.prefill:
        yield ""
        yield from _term_lines(f"a prompt of {kilo(prefill.num_tokens)}", prefill.term)
    for decode in prediction.decode:
        if decode.num_streams == 1:
            yield ""
            yield from _term_lines(f"a token after {kilo(decode.context)}", decode.term)
    if is_papers_shape(config):
        yield ""
        yield from _paper_lines(config)


def is_papers_shape(config: ModelConfig) -> bool:
    """Whether all that speed depends on is as in DeepSeek-V3 and R1."""
    shape = read_config(load_catalog()[PAPERS_SHAPE].config)
    same = replace(shape, bos_id=config.bos_id, eos_ids=config.eos_ids, max_position=config.max_position)
    return same == config


def _term_lines(head: str, term: Term) -> Iterator[str]:
    yield f" {head}"
    for line in term.lines():
        depth = len(line) - len(line.lstrip())
        indent = " " * (depth + 2)
        yield from wrap(line.strip(), WIDTH, initial_indent=indent, subsequent_indent=f"{indent}    ")


def _paper_lines(config: ModelConfig) -> Iterator[str]:
    """Both on the SLP paper's machine, each with one GPU and two."""
    text = (
        "on the SLP paper's machine (2x EPYC 9355, 24 x DDR5-6400, RTX 5090): with the efficiencies that the paper"
        " gives, and with those that localmoe's own CPU kernels reached where they were measured"
    )
    yield from (f" {line}" for line in wrap(text, WIDTH - 1))
    columns: list[Rates] = [rates(config, num) for rates in (paper_rates, localmoe_rates) for num in NUM_GPUS]
    names = [f"{who} {num} GPU{'s' * (num > 1)}" for who in ("paper", "localmoe") for num in NUM_GPUS]
    yield _CELLS.format("", *names)
    for tokens in PROMPTS:
        times = [forecast_prefill(rates, config, _placement(rates), tokens).ttft_s for rates in columns]
        yield _CELLS.format(f"TTFT {kilo(tokens)}", *map(duration, times))
    for context in CONTEXTS:
        speeds = [forecast_decode(rates, config, _placement(rates), context).tok_s for rates in columns]
        yield _CELLS.format(f"decode at {kilo(context)}", *map(speed, speeds))


def _placement(rates: Rates) -> Placement:
    return Placement(num_gpus=len(rates.gpus), chunk=CHUNK)
