"""What an empty chat says: what this is, three questions to try, and which real model could run here."""

from typing import TYPE_CHECKING, cast

from textual import work
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widget import Widget
from textual.widgets import Static

from localmoe.engine.request import EngineInfo
from localmoe.errors import LocalmoeError
from localmoe.tui.away import away
from localmoe.tui.keymap import Keymap
from localmoe.tui.printable import printable
from localmoe.tui.widgets.question import Question

if TYPE_CHECKING:
    from localmoe.tui.paged_app import PagedApp

WHAT_THIS_IS = "A chat with DeepSeek-class Mixture-of-Experts models, on this machine."
KEPT = "Chats are kept: /chats opens earlier ones, /help shows keys."
NOT_KEPT = "This chat is not kept: it ends with the program. /help shows keys."
LOOKING = "Looking which real model this machine could run …"
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
        height: auto; padding: 1 2 0 2; max-width: 90;
        & > Static { height: auto; margin-bottom: 1; }
        & > .name { text-style: bold; color: $primary; margin: 0; }
        & > Question { margin: 0; }
        & > .advice { margin: 1 0 0 0; min-height: 2; }
        & > .remark { color: $text-muted; margin: 1 0 0 0; }
        & > .lead { color: $text-muted; margin: 0; }
    }
    """

    def __init__(self, *, is_kept: bool) -> None:
        super().__init__()
        self._is_kept = is_kept

    def compose(self) -> ComposeResult:
        yield Static("localmoe", classes="name", markup=False)
        yield Static(WHAT_THIS_IS, markup=False)

    def introduce(self, info: EngineInfo) -> None:
        """Says which model answers, once it is there."""
        self.query(".of-model").remove()
        questions = DEMO_QUESTIONS if info.is_demo else QUESTIONS
        self.mount(
            _of_model(Static(_introduction(info), markup=False)),
            _of_model(Static("Try one (a click, or Tab and Enter):", classes="lead", markup=False)),
            *map(_of_model, map(Question, questions)),
            *([_of_model(Static(LOOKING, classes="advice", markup=False))] if info.is_demo else []),
            _of_model(Static(KEPT if self._is_kept else NOT_KEPT, classes="remark", markup=False)),
        )
        if info.is_demo:
            self._advise()

    @work(exclusive=True)
    async def _advise(self) -> None:
        """Says which real model this machine could run."""
        from localmoe.tui.advice import advice_of

        open_surveyor = cast("PagedApp", self.app).open_surveyor
        keymap = getattr(self.app, "keymap", Keymap())
        key = keymap.name("models.open") or "/models"
        try:
            text = await away(lambda: advice_of(open_surveyor().best(), key))
        except LocalmoeError as error:
            text = f"{error.message}. {key} shows models"
        for line in self.query(".advice").results(Static):
            line.update(printable(text))


def _of_model(widget: Widget) -> Widget:
    """What goes when another model is opened."""
    return widget.add_class("of-model")


def _introduction(info: EngineInfo) -> str:
    name, what = printable(info.model), printable(info.description)
    if info.is_demo:
        return f"{name} answers: {what}. It knows localmoe and how such models run, and little else."
    return f"{name} answers: {what}."
