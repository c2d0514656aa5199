"""What an empty chat says: what this is, and three questions to try."""

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from localmoe.engine.request import EngineInfo
from localmoe.tui.printable import printable
from localmoe.tui.widgets.question import Question

WHAT_THIS_IS = "A chat with Mixture-of-Experts models of the DeepSeek kind, computed on this machine."
NOT_SAVED = "Chats are not saved yet: they end with the program."
DEMO_QUESTIONS = ("What can you do?", "How do I run a real model?", "What is a mixture of experts?")
QUESTIONS = (
    "Explain how a mixture of experts works, in five sentences.",
    "Write a Python function that merges overlapping intervals, with tests.",
    "What should I know before I run a large model on my own machine?",
)


class Greeting(Vertical):
    """There until the first question."""

    DEFAULT_CSS = """
    Greeting {
        height: auto; padding: 1 2; max-width: 90;
        & > Static { height: auto; margin-bottom: 1; }
        & > .name { text-style: bold; color: $primary; margin: 0; }
        & > Question { margin: 0; }
        & > .remark { color: $text-muted; margin: 1 0 0 0; }
        & > .lead { color: $text-muted; margin: 0; }
    }
    """

    def compose(self) -> ComposeResult:
        yield Static("localmoe", classes="name", markup=False)
        yield Static(WHAT_THIS_IS, markup=False)

    def introduce(self, info: EngineInfo) -> None:
        """Says which model answers, once it is there."""
        questions = DEMO_QUESTIONS if info.is_demo else QUESTIONS
        self.mount(
            Static(_introduction(info), markup=False),
            Static("Try one (a click, or Tab and Enter):", classes="lead", markup=False),
            *map(Question, questions),
            Static(_remark(info), classes="remark", markup=False),
        )


def _introduction(info: EngineInfo) -> str:
    name, what = printable(info.model), printable(info.description)
    if info.is_demo:
        return f"{name} answers: {what}. It knows localmoe and how such models run, and little else."
    return f"{name} answers: {what}."


def _remark(info: EngineInfo) -> str:
    real = "A real model: localmoe chat -m NAME (localmoe models lists them).\n" if info.is_demo else ""
    return real + NOT_SAVED
