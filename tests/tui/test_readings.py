from staged import DEEPSEEK, GUIDE

from localmoe.events import Failed, Finished, Heat, Lanes, Loading, Lost, PrefillProgress, Queued, Stats, TextDelta
from localmoe.tui.bridge import Opened
from localmoe.tui.readings import NUM_SAMPLES, Readings
from localmoe.tui.widgets.activity import Doing, doing

STATS = Stats(10, 2, 5, 3, 15, 4096, decode_tok_s=21.4)
FINISHED = Finished("stop", "a", "", 1, 0, 1, None, None, None)


def after(*events, start=None):
    readings = start or Readings()
    for event in events:
        readings = readings.after(event)
    return readings


def asked():
    return after(Opened(GUIDE)).asked()


def test_phases_follow_the_events():
    assert Readings().phase == "opening"
    assert after(Opened(GUIDE)).phase == "idle"
    assert asked().phase == "waiting"
    assert after(PrefillProgress(1, 2, 0), start=asked()).phase == "prefill"
    assert after(TextDelta("a", "thought"), start=asked()).phase == "thinking"
    assert after(TextDelta("a"), start=asked()).phase == "answering"
    assert after(TextDelta("a"), FINISHED, start=asked()).phase == "idle"


def test_without_a_model_nothing_can_be_asked():
    assert after(Failed("no")).phase == "closed"


def test_a_model_that_is_gone_can_be_opened_again():
    gone = after(Lost("it has ended"), start=after(Opened(GUIDE)))
    assert gone.phase == "closed" and doing(gone) == Doing("The model is not open. Enter opens it")
    opening = after(Loading("reading", 1, 2), start=gone)
    assert (opening.phase, opening.info) == ("opening", None)
    assert after(Failed("no"), start=opening).phase == "closed"


def test_a_stop_stays_a_stop_whatever_still_comes():
    assert after(TextDelta("a"), PrefillProgress(1, 2, 0), start=asked().stopping()).phase == "stopping"


def test_samples_are_of_this_chat_and_bounded():
    readings = after(*[STATS] * (NUM_SAMPLES + 9), start=asked())
    assert len(readings.decode_tok_s) == NUM_SAMPLES
    assert readings.asked().decode_tok_s == readings.decode_tok_s
    assert readings.emptied().decode_tok_s == ()


def test_a_new_chat_keeps_the_engine_and_no_figures():
    readings = after(STATS, FINISHED, start=asked()).emptied()
    assert (readings.phase, readings.info, readings.stats) == ("idle", GUIDE, None)


def test_what_runs_is_said_in_words():
    assert doing(Readings()) == Doing("Opening the model")
    loading = after(Loading("reading", 412, 824, 4.0, 66.0))
    assert doing(loading) == Doing("Opening, reading: 412 B of 824 B", 0.5, "1 min 6 s left   4 B/s")
    assert doing(asked()) == Doing("Waiting for the engine")
    assert doing(after(Queued(1), start=asked())) == Doing("Waiting, 2 before this one")
    waiting = after(Queued(0, 72.4), start=asked())
    assert doing(waiting) == Doing("Waiting, 1 before this one", None, "its turn in 1 min 12 s")
    prefill = after(PrefillProgress(12_410, 17_480, 0, 1212.0, 4.2), start=after(Opened(DEEPSEEK)).asked())
    assert doing(prefill) == Doing("Reading 12,410 of 17,480 tok", 12_410 / 17_480, "4 s left")
    assert doing(after(TextDelta("a"), STATS, start=asked())) == Doing("Answering", None, "21.4 tok/s")
    assert doing(after(TextDelta("a", "thought"), STATS, start=asked())) == Doing("Thinking", None, "3 tok")
    assert doing(asked().stopping()) == Doing("Stopping")
    assert doing(after(FINISHED, start=asked())) == Doing("")


def test_lanes_and_heat_are_the_latest_and_leave_with_the_chat():
    lanes, heat = Lanes(1.0, 4.0, ()), Heat(1, 4, 1, ((1, 0, 0, 0),))
    readings = after(Lanes(0.5, 4.0, ()), lanes, heat, FINISHED, start=asked())
    assert (readings.lanes, readings.heat) == (lanes, heat)
    assert (readings.emptied().lanes, readings.emptied().heat) == (None, None)


def test_samples_are_of_the_moment_where_that_is_known():
    readings = after(Stats(10, 2, 5, 3, 15, 4096, decode_tok_s=20.0, decode_now_tok_s=25.0), start=asked())
    assert readings.decode_tok_s == (25.0,)
    assert after(PrefillProgress(9, 9, 0, 3.0, None, (2.0, 4.0)), start=readings).prefill_tok_s == (2.0, 4.0)
