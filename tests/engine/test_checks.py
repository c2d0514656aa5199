import math

import pytest

from localmoe.chat.message import Conversation, Message
from localmoe.engine.checks import check_fits, check_request
from localmoe.engine.request import Request, Sampling
from localmoe.errors import UsageError

HELLO = Conversation((Message("user", "Hello"),))


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request(Conversation()), "no question"),
        (Request(Conversation((Message("assistant", "Hm?"),))), "no question"),
        (Request(HELLO.add(Message("user", " \n"))), "empty"),
        (Request(HELLO, max_tokens=0), "max tokens"),
        (Request(HELLO, Sampling(temperature=-0.1)), "temperature"),
        (Request(HELLO, Sampling(temperature=math.nan)), "temperature"),
        (Request(HELLO, Sampling(temperature=math.inf)), "temperature"),
        (Request(HELLO, Sampling(top_p=0)), "top-p"),
        (Request(HELLO, Sampling(top_p=1.01)), "top-p"),
        (Request(HELLO, Sampling(min_p=-1)), "min-p"),
        (Request(HELLO, Sampling(min_p=2)), "min-p"),
        (Request(HELLO, Sampling(repetition_penalty=0)), "repetition penalty"),
        (Request(HELLO, Sampling(repetition_penalty=1e-300)), "repetition penalty"),
        (Request(HELLO, Sampling(seed=-1)), "seed"),
        (Request(HELLO, ttft_target_s=0.0), "first token"),
        (Request(HELLO, ttft_target_s=math.nan), "first token"),
        (Request(HELLO, tpot_target_ms=-5.0), "each token"),
    ],
)
def test_what_is_wrong_is_named_with_a_hint(request_, message):
    with pytest.raises(UsageError, match=message) as caught:
        check_request(request_)
    assert caught.value.hint


@pytest.mark.parametrize("sampling", [Sampling(0, 1, 0, 1), Sampling(2, 0.1, 1, 1.5, 0)])
def test_the_ends_of_ranges_are_fine(sampling):
    check_request(Request(HELLO, sampling, max_tokens=1))


def test_a_long_prompt_is_told_with_its_numbers():
    check_fits(8192, 8192)
    with pytest.raises(UsageError, match="8,193 tokens; the context holds 8,192"):
        check_fits(8193, 8192)
