import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localmoe.chat.message import Conversation, Message
from localmoe.engine.codec import decode_request, encode_request
from localmoe.engine.request import Request, Sampling
from localmoe.errors import UsageError

messages = st.builds(Message, st.sampled_from(["system", "user", "assistant"]), st.text(), st.text())
samplings = st.builds(
    Sampling,
    *[st.floats(0, 2, allow_nan=False) for _ in range(4)],
    seed=st.none() | st.integers(0, 2**40),
)
requests = st.builds(
    Request,
    st.builds(Conversation, st.lists(messages).map(tuple)),
    samplings,
    max_tokens=st.none() | st.integers(1, 10**6),
    think=st.none() | st.booleans(),
    session=st.text(),
    ttft_target_s=st.none() | st.floats(0.01, 1e4),
    tpot_target_ms=st.none() | st.floats(0.01, 1e4),
)


@given(requests)
def test_a_request_survives_json(request_):
    assert decode_request(json.loads(json.dumps(encode_request(request_)))) == request_


def test_defaults_may_be_left_out():
    data = {"conversation": [{"role": "user", "text": "Why?"}], "sampling": {"temperature": 0}}
    assert decode_request(data) == Request(Conversation((Message("user", "Why?"),)), Sampling(temperature=0.0))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "conversation"),
        ({"conversation": "Why?"}, "conversation"),
        ({"conversation": ["Why?"]}, "message"),
        ({"conversation": [{"role": "user"}]}, "text"),
        ({"conversation": [{"role": "robot", "text": ""}]}, "robot"),
        ({"conversation": [], "max_tokens": "9"}, "max_tokens"),
        ({"conversation": [], "max_tokens": True}, "max_tokens"),
        ({"conversation": [], "think": 1}, "think"),
        ({"conversation": [], "ttft_target_s": "soon"}, "ttft_target_s"),
        ({"conversation": [], "sampling": {"top_k": 1}}, "top_k"),
        ({"conversation": [], "temperature": 1}, "temperature"),
    ],
)
def test_a_wrong_request_is_named(data, message):
    with pytest.raises(UsageError, match=message):
        decode_request(data)
