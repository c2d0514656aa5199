import pytest
import vocabularies
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from vocabularies import EOS, USER

from localmoe.chat.stream import Splitter
from localmoe.hub.tokenizer import Tokenizer


class Heard:
    """All that a splitter says of some text, its marks being tokens."""

    def __init__(self, text: str, starts_in_thought: bool = False, tokenizer: Tokenizer | None = None) -> None:
        tokenizer = tokenizer or vocabularies.deepseek()
        self.splitter = Splitter(tokenizer, starts_in_thought)
        self.said = [self.splitter.feed(i) for i in tokenizer.encode(text, special=True)]
        self.said.append(self.splitter.flush())
        self.thought, self.answer = self.splitter.thought, self.splitter.answer
        for channel, whole in (("thought", self.thought), ("answer", self.answer)):
            assert "".join(text for said in self.said for c, text in said if c == channel) == whole

    @property
    def sides(self) -> tuple[str, str]:
        return self.thought, self.answer


@pytest.fixture(scope="module")
def no_marks(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A tokenizer without <think>: the marks come as plain text, one byte at a time."""
    folder = tmp_path_factory.mktemp("no_marks")
    return Tokenizer.open(vocabularies.write_bytes_tokenizer(folder, vocabularies.DEEPSEEK[:5]))


def test_a_plain_answer_is_said_token_by_token() -> None:
    heard = Heard("Yes, of course.\n")
    assert heard.sides == ("", "Yes, of course.\n")
    assert heard.said[:2] == [[("answer", "Yes")], [("answer", ",")]]
    assert heard.splitter.num_thought_tokens == 0


@pytest.mark.parametrize(
    ("text", "in_prompt"),
    [
        ("<think>\nHm.\n\nWell.\n</think>\n\nYes.", False),  # R1 by itself
        ("\nHm.\n\nWell.\n</think>\n\nYes.", True),  # <think>\n in the prompt
        ("Hm.\n\nWell.</think>Yes.", True),  # V3.1
        ("<think>\nHm.\n\nWell.\n</think>\n\nYes.", True),  # in the prompt, and said again
        ("\n<think>Hm.\n\nWell.</think>\nYes.", False),
    ],
)
def test_a_thought_and_an_answer_without_the_newlines_around_them(text: str, in_prompt: bool, no_marks) -> None:
    assert Heard(text, in_prompt).sides == ("Hm.\n\nWell.", "Yes.")
    if not (in_prompt and text.startswith("<think>")):
        assert Heard(text, in_prompt, no_marks).sides == ("Hm.\n\nWell.", "Yes.")


def test_a_thought_that_never_ends_is_all_thought(no_marks: Tokenizer) -> None:
    for tokenizer in (None, no_marks):
        assert Heard("Hm, and so on </thi", True, tokenizer).sides == ("Hm, and so on </thi", "")


def test_an_empty_thought() -> None:
    assert Heard("<think>\n\n</think>\n\nYes.").sides == ("", "Yes.")
    assert Heard("</think>Yes.", True).sides == ("", "Yes.")


def test_indentation_of_an_answer_is_kept() -> None:
    assert Heard("</think>\n\n    code()", True).answer == "    code()"
    assert Heard("\n  code()").answer == "\n  code()"


def test_marks_inside_an_answer_are_words() -> None:
    assert Heard("R1 writes <think> and </think>.").sides == ("", "R1 writes <think> and </think>.")
    assert Heard("<think>a</think>b</think>c").sides == ("a", "b</think>c")
    assert Heard("a <think> b</think>c", True).sides == ("a <think> b", "c")


def test_a_needless_end_of_thought_is_not_shown() -> None:
    assert Heard("</think>Yes.").sides == ("", "Yes.")


def test_special_tokens_are_never_shown() -> None:
    assert Heard(f"Yes.{USER}{EOS}").sides == ("", "Yes.")
    assert Heard(f"<think>{USER}a</think>b<｜tool▁calls▁begin｜>{EOS}").sides == ("a", "b")


def test_thought_tokens_are_counted_without_marks() -> None:
    tokenizer = vocabularies.deepseek()
    heard = Heard("<think>\nHm. Well.\n</think>\n\nYes.")
    assert heard.splitter.num_thought_tokens == len(tokenizer.encode("\nHm. Well.\n"))


def test_in_thought_follows_the_marks() -> None:
    tokenizer = vocabularies.deepseek()
    splitter = Splitter(tokenizer, starts_in_thought=True)
    inside = []
    for token in tokenizer.encode("a</think>b", special=True):
        splitter.feed(token)
        inside.append(splitter.in_thought)
    assert inside == [True, False, False]


def test_text_that_looks_like_a_mark_for_a_while_is_not_lost(no_marks: Tokenizer) -> None:
    assert Heard("a < b </ c </th", True, no_marks).thought == "a < b </ c </th"
    assert Heard("<thin air", False, no_marks).sides == ("", "<thin air")
    assert Heard(" <", False, no_marks).sides == ("", " <")
    assert Heard("see <think>", False, no_marks).sides == ("", "see <think>")


def test_a_character_cut_off_by_a_mark_or_the_end_shows_as_broken() -> None:
    tokenizer = vocabularies.deepseek()
    half = tokenizer.encode("龘")[0]
    close = tokenizer.token_id("</think>")
    assert close is not None and len(tokenizer.encode("龘")) > 1
    splitter = Splitter(tokenizer, starts_in_thought=True)
    assert splitter.feed(half) == []
    assert splitter.feed(close) == [("thought", "�")]
    splitter.feed(half)
    assert splitter.flush() == [("answer", "�")]


words = st.text(st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from("한국어龘🇰🇷👩‍é<>/think\n ")))


@settings(deadline=None)
@given(words)
def test_any_answer_arrives_whole(text: str) -> None:
    assume("<｜" not in text)  # what spells a special token is one
    tokenizer = vocabularies.deepseek()
    splitter = Splitter(tokenizer)
    pieces = [piece for i in tokenizer.encode(text) for piece in splitter.feed(i)] + splitter.flush()
    assert "".join(piece for _, piece in pieces) == text == splitter.answer
    assert all(channel == "answer" and piece for channel, piece in pieces)


@settings(deadline=None)
@given(words, words)
def test_any_thought_and_answer_arrive_whole_but_for_newlines_between(thought: str, answer: str) -> None:
    assume("think>" not in thought + answer and "<｜" not in thought + answer)
    said = Heard(f"{thought}</think>{answer}", True)
    assert said.sides == (thought.strip("\r\n"), answer.lstrip("\r\n"))


@settings(deadline=None)
@given(st.lists(st.integers(0, 129_279), max_size=30), st.booleans())
def test_any_tokens_at_all_are_taken(ids: list[int], starts_in_thought: bool) -> None:
    splitter = Splitter(vocabularies.deepseek(), starts_in_thought)
    for token in ids:
        splitter.feed(token)
    splitter.flush()
    assert 0 <= splitter.num_thought_tokens <= len(ids)
