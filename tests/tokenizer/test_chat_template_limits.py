"""Templates that mean harm: each ends with a named error, soon, with little memory and without a trace."""

import sys
from pathlib import Path

import pytest

from llmkit.errors import ChatTemplateError
from llmkit.tokenizer.chat_template import ChatTemplate
from llmkit.tokenizer.chat_template_process import _too_old

DOUBLING = "{% set ns = namespace(x=START) %}{% for i in range(60) %}{% set ns.x = NEXT %}{% endfor %}{{ ns.x }}"

LIMITS = {
    "a long range": "{% for i in range(10**9) %}{% endfor %}",
    "a long text": "{{ 'a' * 10**9 }}",
    "a wide filter": "{{ 'a'|center(10**9) }}",
    "a wide format": "{{ '{:1000000000d}'.format(3) }}",
    "replacing": "{{ ('a' * 10**7).replace('', 'b' * 100) }}",
    "joining": "{{ range(100000)|join('x' * 10**6) }}",
    "indenting": "{{ ('a\n' * 10**5)|indent(10**6) }}",
    "a doubled text": DOUBLING.replace("START", "'a'").replace("NEXT", "ns.x ~ ns.x"),
    "a doubled list": DOUBLING.replace("START", "[1]").replace("NEXT", "ns.x + ns.x"),
    "much output": "{% for i in range(90000) %}{{ 'a' * 100000 }}{% endfor %}",
    "a macro without an end": "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
}
SLOW = {
    "nested loops": "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
    "a power": "{{ (9**9)**(9**8) }}",
}
UNSAFE = {
    "a class": "{{ ''.__class__.__mro__ }}",
    "globals": "{{ cycler.__init__.__globals__.os.system('touch MARK') }}",
    "code": "{{ raise_exception.__code__.co_consts }}",
    "a changed list": "{{ messages.append(1) }}",
    "a changed message": "{{ messages[0].update({'role': 'x'}) }}",
    "a namespace": "{{ namespace(__class__=1) }}",
}


def made(source: str) -> str:
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>").render([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize("case", LIMITS)
def test_what_takes_too_much_is_refused(case: str) -> None:
    with pytest.raises(ChatTemplateError, match=r"limits|too much memory"):
        made(LIMITS[case])
    assert made("{{ messages[0].content }}") == "hi", "the next template is not harmed"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not count address space")
def test_memory_is_limited() -> None:
    with pytest.raises(ChatTemplateError, match="more than 512 MiB of memory"):
        made("{{ ('a' * 10**9)|length }}")


@pytest.mark.parametrize("case", SLOW)
def test_what_takes_too_long_is_ended(case: str) -> None:
    with pytest.raises(ChatTemplateError, match=r"too long|limits|longer than"):
        made(SLOW[case])
    assert made("{{ messages[0].content }}") == "hi"


@pytest.mark.parametrize("case", UNSAFE)
def test_ways_out_are_closed(case: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with pytest.raises(ChatTemplateError, match=r"what none may do|fails"):
        made(UNSAFE[case].replace("MARK", str(mark)))
    assert not mark.exists()


def test_unsafe_values_have_no_text() -> None:
    assert made("{{ '{0.__class__}'.format(1) }}|{{ {}|attr('__class__') }}") == "|"


@pytest.mark.parametrize(("version", "old"), [("3.1.5", True), ("3.1.6", False), ("3.2.0", False), ("2.11.3", True)])
def test_a_jinja2_with_holes_is_too_old(version: str, old: bool) -> None:
    assert _too_old(version) is old
