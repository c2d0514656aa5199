"""An open engine that has nothing to do leaves the machine alone."""

import time

from localmoe.chat.message import Conversation, Message
from localmoe.engine.request import Request, Sampling


def test_an_idle_engine_uses_less_than_a_hundredth_of_a_core(engine):
    asked = Conversation((Message("user", "Hello"),))
    list(engine.submit(Request(asked, Sampling(temperature=0), 4, session="idle")).events())
    time.sleep(0.2)  # workers spin for a moment before they sleep
    before_s, since_s = time.process_time(), time.monotonic()
    time.sleep(2)
    assert time.process_time() - before_s < 0.01 * (time.monotonic() - since_s)
