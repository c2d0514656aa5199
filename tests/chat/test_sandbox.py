import subprocess
import sys
import time
from pathlib import Path

import pytest

from localmoe.chat.sandbox import render
from localmoe.errors import CheckpointError, UsageError


def test_a_template_is_rendered_for_every_job() -> None:
    assert render("a {{ x }}", [{"x": 1}, {"x": "é"}]) == ["a 1", "a é"]


def test_what_transformers_offers_is_there() -> None:
    source = """
{% generation %}G{% endgeneration %}
{%- for n in [1, 2, 3] %}
    {% if n == 2 %}{% continue %}{% endif %}
    {% if n == 3 %}{% break %}{% endif %}
{{ n }}
{% endfor %}
{{ {'b': '<é>', 'a': 1} | tojson }} {{ [1] | tojson(indent=1) }} {{ strftime_now('%Y') }}"""
    from transformers.utils.chat_template_utils import _compile_jinja_template

    text = render(source, [{}])[0]
    assert text == _compile_jinja_template(source).render()
    assert isinstance(text, str) and '{"b": "<é>", "a": 1} [\n 1\n] 2' in text


def test_a_template_can_refuse_a_conversation() -> None:
    outcome = render("{% if x %}{{ raise_exception('No system\nrole.') }}{% endif %}ok", [{"x": 1}, {"x": 0}])
    assert isinstance(outcome[0], UsageError) and "refuses this conversation: No system role." in outcome[0].message
    assert outcome[1] == "ok"


def test_limits_that_are_tighter_already_stay() -> None:
    program = (
        "import resource; from localmoe.chat.sandbox import render;"
        "resource.setrlimit(resource.RLIMIT_AS, (400 << 20, 400 << 20)); print(render('a {{ x }}', [{'x': 1}]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "['a 1']\n", done.stderr


LOOP = "{% for x in range(99999) %}"
FOREVER = LOOP * 3 + "{% endfor %}" * 3


@pytest.mark.parametrize(
    "hostile",
    [
        FOREVER,
        "{{ 'x' * 2000000000 }}",
        "{% set ns = namespace(s='xx') %}{% for a in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% for a in range(9999) %}{{ 'x' * 9999 }}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 'x'.ljust(2000000000) }}",
        "{{ '%2000000000d' % 1 }}",
    ],
    ids=["forever", "huge", "doubling", "long", "recursion", "padding", "formatting"],
)
def test_a_template_that_takes_too_much_is_stopped(hostile: str) -> None:
    began = time.monotonic()
    with pytest.raises(CheckpointError, match="too much time or memory"):
        render(hostile, [{}])
    assert time.monotonic() - began < 29


@pytest.mark.parametrize(
    "hostile",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ (messages | attr('__class__')).__name__ }}",
        "{% set ns = namespace(__class__=1) %}",
        "{% if messages.append(1) %}{% endif %}",
        "{{ '{0.__class__.__mro__}'.format('') }}",
    ],
)
def test_pythons_insides_are_out_of_reach(hostile: str) -> None:
    outcome = render(hostile, [{"messages": []}])[0]
    assert isinstance(outcome, CheckpointError)
    assert "must not" in outcome.message and outcome.hint and "\n" not in outcome.message


def test_an_attribute_that_is_only_printed_is_nothing() -> None:
    assert render("[{{ ''.__class__ }}]", [{}]) == ["[]"]


@pytest.mark.parametrize("broken", ["{% if %}", "{{ x.y.z }}", "{% include 'file' %}", "{{ 1 / 0 }}", "{% unknown %}"])
def test_a_broken_template_is_one_sentence(broken: str) -> None:
    outcome = render(broken, [{}])[0]
    assert isinstance(outcome, CheckpointError)
    assert "cannot be rendered" in outcome.message and outcome.exit_code == 4 and "\n" not in outcome.message


def test_no_file_can_be_read_and_no_secret_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    secret = tmp_path / "secret"
    secret.write_text("secret")
    for source in (f"{{% include '{secret}' %}}", f"{{% import '{secret}' as s %}}{{{{ s }}}}"):
        assert isinstance(render(source, [{}])[0], CheckpointError)
