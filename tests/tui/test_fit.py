"""What does not fit is seen before it is sent, with numbers; nothing is cut that was not asked for."""

from localmoe.chat.message import Conversation, Message
from localmoe.tui.fit import find_misfit, room_for_answer, shorten, surely_fits

LIMIT = 800
ROOM = 100  # an eighth


def talk(*sizes):
    roles = ("user", "assistant")
    turns = [Message(roles[place % 2], "w " * size) for place, size in enumerate(sizes)]
    return Conversation((Message("system", "s"), *turns))


class Counter:
    """A token a word, as many as there are."""

    def __init__(self):
        self.calls = 0

    def __call__(self, conversation):
        self.calls += 1
        return sum(len(message.text.split()) for message in conversation.messages)


def misfit(conversation, unread=0, max_tokens=None):
    return find_misfit(conversation, unread, LIMIT, max_tokens, Counter())


def test_what_fits_is_no_misfit():
    assert misfit(talk(100, 100, 100)) is None
    assert misfit(talk(699)) is None


def test_a_short_conversation_is_not_even_counted():
    count = Counter()
    assert find_misfit(talk(20), 0, LIMIT, None, count) is None
    assert not count.calls


def test_wide_characters_are_not_taken_for_short():
    assert not surely_fits(Conversation((Message("user", "한" * 100),)), 320)
    assert surely_fits(Conversation((Message("user", "한" * 100),)), 400)


def test_the_oldest_turns_are_left_out_in_pairs_until_there_is_air():
    found = misfit(talk(100, 100, 100, 100, 100, 100, 150))
    assert (found.num_tokens, found.question_tokens, found.excess) == (751, 150, 51)
    assert (found.unread_turns, found.tokens_then) == (2, 551)


def test_turns_that_are_left_out_already_stay_out():
    found = misfit(talk(300, 300, 200, 200, 250, 250, 20), unread=2)
    assert (found.unread_turns, found.tokens_then) == (4, 521)


def test_less_air_is_better_than_none():
    found = misfit(talk(100, 100, 650))
    assert (found.unread_turns, found.tokens_then) == (2, 651)


def test_a_question_that_is_too_long_by_itself_can_only_be_shortened():
    found = misfit(talk(100, 100, 900))
    assert found.unread_turns is None and found.can_shorten
    assert found.left_for_answer < 1


def test_a_question_can_leave_little_for_the_answer():
    found = misfit(talk(750))
    assert found.left_for_answer == 49


def test_room_is_kept_for_what_was_asked():
    assert room_for_answer(128_000, None) == 512
    assert room_for_answer(128_000, 20) == 20
    assert room_for_answer(4096, None) == 512
    assert room_for_answer(800, 9999) == 100


def test_a_shortened_question_fits_and_says_what_is_gone():
    question = "\n".join(f"line {number}" for number in range(1000))
    conversation = Conversation((Message("user", question),))
    text = shorten(conversation, 0, LIMIT - ROOM, Counter())
    assert text.startswith("line 0\nline 1\n")
    kept, _, remark = text.rpartition("\n")
    assert remark.startswith("[cut here: ") and remark.endswith(" more lines]")
    assert question.startswith(kept)
    assert 690 <= Counter()(Conversation((Message("user", text),))) <= 700


def test_of_a_question_with_a_file_the_file_is_shortened():
    question = 'What is this?\n\n<file path="a.txt">\n' + "w " * 1000 + "\n</file>"
    text = shorten(Conversation((Message("user", question),)), 0, 300, Counter())
    assert text.startswith('What is this?\n\n<file path="a.txt">\nw w ')
    assert text.endswith("[cut here: 1 more line]\n</file>")


def test_a_question_without_room_is_shortened_for_a_chat_without_earlier_turns():
    text = shorten(talk(400, 400, 900), 0, 700, Counter())
    assert len(text.split()) > 600
