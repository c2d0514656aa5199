"""The README's picture: the real chat with the real embedded model, figures as they were measured then.

`pytest tests/tui/test_screenshot.py --snapshot-update` takes it anew; without that the picture must still hold
what the program says.
"""

import html
import re
from pathlib import Path

from staged import until
from surveyed import RecordedSurveyor

from localmoe.cli.opening import open_engine
from localmoe.settings import load_settings
from localmoe.tui.app import ChatApp

PICTURE = Path(__file__).parents[2] / "assets" / "screenshots" / "chat.svg"
QUESTIONS = ("What can you do?", "What is stream-loading prefill?")


def words(text):
    return set(re.findall(r"[^\W\d_]+", text))


def shown_words(svg):
    return words(html.unescape(" ".join(re.findall(r"<text[^>]*>([^<]*)</text>", svg))))


async def test_the_picture_shows_what_the_program_says(request, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    settings = load_settings({"temperature": 0.0})
    app = ChatApp(lambda settings: lambda on_event: open_engine(settings, on_event), settings, RecordedSurveyor())
    async with app.run_test(size=(112, 40)) as pilot:
        chat = app.screen
        await until(pilot, lambda: chat.readings.phase != "opening", 120)
        assert chat.readings.info, "the embedded model cannot be opened"
        for number, question in enumerate(QUESTIONS, 1):
            chat.query_one("Prompt").insert(question)
            await pilot.press("enter")
            await until(pilot, lambda n=number: len(chat.conversation.messages) == 2 * n, 120)
        picture = app.export_screenshot(simplify=True)
        said = " ".join(message.text for message in chat.conversation.messages)
    app.bridge.close()
    if request.config.getoption("update_snapshots"):
        PICTURE.parent.mkdir(parents=True, exist_ok=True)
        PICTURE.write_text(picture, encoding="utf-8")
    stored = shown_words(PICTURE.read_text(encoding="utf-8"))
    assert words(said) | {"You", "Speed", "Memory", "Engine", "Plan", chat.readings.info.model} <= stored
