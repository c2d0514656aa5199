"""What the chat imports, and when: the first paint waits for no engine and no Markdown; nothing waits for torch."""

import os
import subprocess
import sys

from terminal import PACKAGE

HEAVY = ("torch", "triton", "transformers", "numpy", "markdown_it", "pygments", "tokenizers", "huggingface_hub")


def modules_after(code):
    command = [sys.executable, "-P", "-c", f"{code}\nimport sys\nprint(*sys.modules)"]  # not the checkout's package
    here = {**os.environ, "PYTHONPATH": PACKAGE}
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=here)
    return set(result.stdout.split())


def test_before_the_first_paint_nothing_heavy_is_imported():
    modules = modules_after("import localmoe.tui.app")
    assert not modules & set(HEAVY)
    assert not {m for m in modules if m.startswith("localmoe.engine.")} - {"localmoe.engine.request"}


def test_a_whole_chat_never_imports_torch():
    code = """
import asyncio, sys
sys.path[:0] = ["tests", "tests/tui"]
from staged import StagedChat, answered, opened, say
async def main():
    async with StagedChat(["An *answer*."]).run_test() as pilot:
        await opened(pilot)
        await say(pilot, "A question?")
        await answered(pilot)
asyncio.run(main())
"""
    modules = modules_after(code)
    assert "markdown_it" in modules
    assert not modules & {"torch", "triton", "transformers"}
