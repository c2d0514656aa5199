"""What a step of decode takes beside the network: Python, text, events, the choice of a token."""

from contextlib import closing
from dataclasses import replace
from statistics import median

from localmoe.bench.answers import SAMPLING
from localmoe.bench.prompts import prompt_of
from localmoe.chat.message import Conversation, Message
from localmoe.engine.cost.predict import forecast_decode
from localmoe.engine.cost.rates import Rates
from localmoe.engine.engine import Engine
from localmoe.engine.request import EngineFace, Request, Sampling
from localmoe.engine.trial import choice_s, config_of, cpu_placement
from localmoe.errors import LocalmoeError
from localmoe.events import Failed, Finished
from localmoe.hub.catalog import resolve
from localmoe.settings import Settings

MODEL = "guide"  # so small that little of a step is the network's
VOCAB = 131072
PROMPT_TOKENS, NUM_DECODED, CONTEXT = 64, 48, 256
NUM_ANSWERS = 6


def logit_s() -> float:
    """Seconds for each entry of a large vocabulary."""
    return choice_s(VOCAB) / VOCAB


def step_s(settings: Settings, rates: Rates) -> float | None:
    """Seconds of a step of the embedded model, without what `rates` say of its network; None where it says too little.

    `rates` have no time for steps themselves.
    """
    own = replace(settings, model=MODEL, context=CONTEXT, origins={**settings.origins, "context": "flag"})
    with closing(Engine.open(MODEL, own)) as engine:
        found = [seconds for seed in range(NUM_ANSWERS) if (seconds := _step(engine, seed))]
    if not found:
        return None
    config = config_of(resolve(MODEL).folder)
    context = PROMPT_TOKENS + NUM_DECODED // 2
    network_s = forecast_decode(rates, config, cpu_placement(settings), context).term.seconds
    return max(1e-6, median(found) - network_s)


def _step(engine: EngineFace, seed: int) -> float | None:
    """Seconds of each step of an answer; None for one that is too short."""
    prompt = prompt_of(engine, PROMPT_TOKENS, seed)
    sampling = Sampling(SAMPLING.temperature, SAMPLING.top_p, seed=seed)
    handle = engine.submit(Request(Conversation((Message("user", prompt),)), sampling, NUM_DECODED, session="steps"))
    for event in handle.events():
        if isinstance(event, Failed):
            raise LocalmoeError(event.message, event.hint)
        if isinstance(event, Finished):
            return 1 / event.decode_tok_s if event.decode_tok_s and event.completion_tokens > 8 else None
    return None
