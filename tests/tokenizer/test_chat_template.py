"""Chat templates: set up as transformers sets them up, and what is done for those that take less.

The expected texts of TEMPLATES are those of transformers 5.24's apply_chat_template. chat_templates.json holds what
llama_chat_apply_template (build 11434) makes of four conversations with each of its names.
"""

import json
import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from llmkit.errors import ChatTemplateError, UsageError
from llmkit.files.gguf_reader import open_gguf
from llmkit.files.gguf_writer import write_gguf
from llmkit.tokenizer import chat_template
from llmkit.tokenizer.chat_template import ChatTemplate, has_chat_template, load_chat_template
from llmkit.tokenizer.chat_template_names import BUILT_IN
from tests.make_vocab import bpe_vocab, spm_vocab

Messages = list[dict[str, Any]]
HI: Messages = [{"role": "user", "content": "Hi"}]
EACH = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
STRICT = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + EACH[23:]
DROPPING = EACH.replace("%}[", "%}{% if m.role != 'system' %}[", 1).replace("{% endfor", "{% endif %}{% endfor")
LLAMACPP = json.loads((Path(__file__).with_name("chat_templates.json")).read_text(encoding="utf-8"))


def render(source: str, messages: Messages = HI, **kwargs: Any) -> str:
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>").render(messages, **kwargs)


# As transformers

TEMPLATES = {
    "blocks take their line": (
        "{% if true %}\n  a\n  {% if true %}\n  b\n  {% endif %}\n{% endif %}\nc",
        "  a\n  b\nc",
    ),
    "tokens": ("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", "<s>Hi</s>"),
    "tojson": ("{{ x | tojson }}", '{"b": "<é\'>", "a": 1}'),
    "tojson with options": (
        "{{ x | tojson(indent=1, sort_keys=true, ensure_ascii=true) }}",
        '{\n "a": 1,\n "b": "<\\u00e9\'>"\n}',
    ),
    "separators": ("{{ x | tojson(separators=(',', ':')) }}", '{"b":"<é\'>","a":1}'),
    "break and continue": (
        "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}"
        "{% endfor %}",
        "013",
    ),
    "namespace": ("{% set n = namespace(a=1) %}{% for i in [1, 2] %}{% set n.a = n.a + i %}{% endfor %}{{ n.a }}", "4"),
    "generation": ("{% set a = 1 %}{% generation %}{% set a = 2 %}x{{ a }}{% endgeneration %}{{ a }}", "x21"),
    "string methods": ("{{ ' a,b '.strip().split(',')[-1].upper() + 'x'.title().rjust(3) }}", "B  X"),
    "slices and filters": ("{{ [3, 1, 2][1:] | sort | join('-') }}{{ 'abc'[::-1] }}", "1-2cba"),
    "dict": (
        "{{ dict(a=1, **{'b': 2}) }}{{ x.get('z', 'none') }}{{ x.items() | list | length }}",
        "{'a': 1, 'b': 2}none2",
    ),
    "macro": ("{% macro f(a, b='y') %}{{ a }}{{ b }}{% endmacro %}{{ f('x') }}{{ f('x', b='z') }}", "xyxz"),
    "undefined": ("[{{ nothing }}]{{ nothing is defined }}{{ messages[0].tool_calls is none }}", "[]FalseFalse"),
    "is string": ("{{ messages[0].content is string }}{{ messages is iterable }}{{ x is mapping }}", "TrueTrueTrue"),
}  # fmt: skip


@pytest.mark.parametrize("case", TEMPLATES)
def test_templates_mean_what_they_mean_in_transformers(case: str) -> None:
    source, expected = TEMPLATES[case]
    assert render(source, x={"b": "<é'>", "a": 1}) == expected


def test_strftime_now() -> None:
    assert re.fullmatch(r"\d\d \w{3} 2\d{3}", render("{{ strftime_now('%d %b %Y') }}"))


def test_what_is_null_is_left_out() -> None:
    messages: Messages = [{"role": "assistant", "content": None, "name": None}]
    assert render("{{ messages[0].content is defined }}{{ 'name' in messages[0] }}", messages) == "FalseFalse"


def test_reasoning_is_under_each_of_its_names() -> None:
    messages: Messages = [{"role": "assistant", "content": "a", "reasoning": "hm"}]
    assert render("{{ messages[0].reasoning_content }}{{ messages[0].thinking }}", messages) == "hmhm"


def test_tools_and_tool_messages() -> None:
    tools = [{"type": "function", "function": {"name": "add"}}]
    messages: Messages = [*HI, {"role": "tool", "content": "2", "tool_call_id": "c1"}]
    source = "{{ tools[0].function.name }}{{ messages[1].role }}{{ messages[1].tool_call_id }}{{ tools | tojson }}"
    assert render(source, messages, tools=tools) == "addtoolc1" + json.dumps(tools)
    assert render("{{ tools is none }}") == "True"


def test_messages_are_not_changed() -> None:
    messages: Messages = [{"role": "system", "content": "S"}, *HI]
    before = json.dumps(messages)
    render(STRICT, messages)
    render(EACH, messages, continue_final_message=True)
    assert json.dumps(messages) == before


def test_any_text_passes() -> None:
    text = "\0\ud800\U0001f999\u2028\"'{{ 1 }}<|im_end|>"
    assert render("{{ messages[0].content }}", [{"role": "user", "content": text}]) == text


# Continuing an answer


def test_an_answer_is_continued() -> None:
    messages: Messages = [*HI, {"role": "assistant", "content": "Well "}]
    assert render(EACH + "<end>", messages, continue_final_message=True) == "[user]Hi[assistant]Well "
    trimming = EACH.replace("m.content", "m.content | trim")
    assert render(trimming + "<end>", messages, continue_final_message=True) == "[user]Hi[assistant]Well"
    parts: Messages = [*HI, {"role": "assistant", "content": [{"type": "text", "text": "So"}]}]
    assert render(EACH + "<end>", parts, continue_final_message=True) == "[user]Hi[assistant]So"


def test_an_answer_that_cannot_be_continued() -> None:
    messages: Messages = [*HI, {"role": "assistant", "content": "Well"}]
    with pytest.raises(ChatTemplateError, match="leaves out"):
        render("{{ messages[0].content }}", messages, continue_final_message=True)
    for last in ({"role": "assistant"}, {"role": "assistant", "content": []}):
        with pytest.raises(ChatTemplateError, match="no text that could be continued"):
            render(EACH, [*HI, last], continue_final_message=True)
    with pytest.raises(ChatTemplateError, match="no text"):
        render(EACH, [], continue_final_message=True)


# For templates that take less


@pytest.mark.parametrize("source", [STRICT, DROPPING], ids=["refused", "dropped"])
def test_a_system_prompt_that_is_not_taken_goes_before_the_user_s_text(source: str) -> None:
    messages: Messages = [{"role": "system", "content": "S"}, *HI, {"role": "assistant", "content": "A"}]
    template = ChatTemplate(source, bos_token="", eos_token="")
    assert not template.takes_system
    assert template.render(messages) == "[user]S\nHi[assistant]A"
    assert template.render(messages[:1]) == "[user]S"
    parts: Messages = [messages[0], {"role": "user", "content": [{"type": "text", "text": "P"}]}]
    assert template.render(parts) == "[user]S\nP"
    later: Messages = [*HI, {"role": "assistant", "content": "A"}, messages[0], *HI]
    assert template.render(later) == "[user]Hi[assistant]A[user]S\nHi"


def test_a_system_prompt_that_is_taken_stays() -> None:
    assert render(EACH, [{"role": "system", "content": "S"}, *HI]) == "[system]S[user]Hi"


def test_a_strict_template_refuses_by_name() -> None:
    """Case 7: a system message in the middle is a named error, and what comes next is not harmed."""
    refusing = "{% if m.role == 'system' and not loop.first %}{{ raise_exception('System first.') }}{% endif %}"
    strict = "{% for m in messages %}" + refusing + "{{ m.content }}{% endfor %}"
    with pytest.raises(ChatTemplateError, match=r"refuses the messages: System first\.") as caught:
        render(strict, [*HI, *HI, {"role": "system", "content": "S"}])
    assert isinstance(caught.value, UsageError)
    assert render(strict) == "Hi"


def test_parts_are_joined_for_a_template_that_knows_texts_only() -> None:
    messages: Messages = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert render(EACH, messages) == "[user]a\nb"
    knowing = "{% for m in messages %}{% for p in m.content %}({{ p.text }}){% endfor %}{% endfor %}"
    assert render(knowing, messages) == "(a)(b)"
    messages[0]["content"].append({"type": "image_url", "image_url": {"url": "x"}})
    with pytest.raises(ChatTemplateError, match="'image_url'"):
        render(EACH, messages)


def call(arguments: Any) -> Messages:
    function = {"name": "f", "arguments": arguments}
    return [*HI, {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": function}]}]


CALLS = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}<ARGS>{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        ("{{ c.function.arguments | tojson }}", '{"a": 1}'),
        ("{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}", "a=1"),
        ("{{ '' + c.function.arguments }}", '{"a": 1}'),
        ("{{ c.function.arguments }}", '{"a": 1}'),
    ],
    ids=["as JSON", "one by one", "a text", "printed"],
)
def test_arguments_of_a_call_come_as_text_or_as_an_object(shown: str, expected: str) -> None:
    source = CALLS.replace("<ARGS>", shown)
    assert render(source, call('{"a": 1}')) == render(source, call({"a": 1})) == "Hi" + expected


def test_arguments_that_are_no_json_stay() -> None:
    source = CALLS.replace("<ARGS>", "{{ c.function.arguments | tojson }}")
    assert render(source, call("{not json")) == 'Hi"{not json"'


def test_a_call_without_content_is_given_an_empty_one() -> None:
    assert render("{% for m in messages %}{{ '<' + m.content + '>' }}{% endfor %}", call("{}")) == "<Hi><>"


@pytest.mark.parametrize(
    "messages", [[{"content": "x"}], [3], [{"role": 1}], [{"role": "user", "content": {1, 2}}]], ids=repr
)
def test_what_is_no_message_is_refused(messages: Any) -> None:
    with pytest.raises(ChatTemplateError, match=r"no role|no plain data"):
        render(EACH, messages)


def test_a_template_that_does_not_compile() -> None:
    with pytest.raises(ChatTemplateError, match=r"no valid Jinja2.*line 2"):
        render("a\n{% if %}")


# Names


@pytest.mark.parametrize("name", BUILT_IN)
def test_names_make_llama_cpp_s_texts(name: str) -> None:
    template = ChatTemplate(BUILT_IN[name], bos_token="", eos_token="")
    for conversation, expected in zip(LLAMACPP["conversations"], LLAMACPP["texts"][name], strict=True):
        messages, generation = conversation["messages"], conversation["add_generation_prompt"]
        if name == "yandex" and messages[0]["role"] == "system":
            continue  # llama.cpp drops the system prompt
        if name == "rwkv-world" and messages[-1]["role"] == "user" and not generation:
            continue  # llama.cpp begins an answer that nobody asked for
        assert template.render(messages, add_generation_prompt=generation) == expected


def test_all_of_llama_cpp_s_names_are_there() -> None:
    assert set(BUILT_IN) == set(LLAMACPP["texts"])


def test_every_name_shows_a_system_prompt() -> None:
    messages: Messages = [{"role": "system", "content": "Sys"}, *HI]
    for name, source in BUILT_IN.items():
        assert "Sys" in render(source, messages), name


# Out of a file


def file_with(tmp_path: Path, vocab: dict[str, object], **more: object) -> Path:
    path = tmp_path / "m.gguf"
    write_gguf(path, {"general.architecture": "llama", **vocab, **more}, [])
    return path


def test_which_template_is_taken(tmp_path: Path) -> None:
    key = "tokenizer.chat_template"
    path = file_with(tmp_path, spm_vocab(), **{key: "own{{ bos_token }}{{ eos_token }}", f"{key}.tool_use": "variant"})
    with open_gguf(path) as gguf:
        assert has_chat_template(gguf)
        assert load_chat_template(gguf).render(HI) == "own<s></s>"
        assert load_chat_template(gguf, name_or_text="tool_use").render(HI) == "variant"
        assert load_chat_template(gguf, name_or_text="llama2").render(HI) == "[INST] Hi [/INST]"
        assert load_chat_template(gguf, name_or_text="{{ 1 + 1 }}").render(HI) == "2"
        (tmp_path / "t.jinja").write_text("file")
        assert load_chat_template(gguf, file=str(tmp_path / "t.jinja")).render(HI) == "file"
        with pytest.raises(UsageError, match="no chat template 'nosuch'") as caught:
            load_chat_template(gguf, name_or_text="nosuch")
        assert caught.value.hint.startswith("There are tool_use, bailing,")
        with pytest.raises(UsageError, match="two templates"):
            load_chat_template(gguf, name_or_text="llama2", file="x")


def test_a_file_without_a_template_gets_chatml(tmp_path: Path) -> None:
    with open_gguf(file_with(tmp_path, bpe_vocab())) as gguf:
        assert not has_chat_template(gguf)
        assert load_chat_template(gguf).name == "chatml"
        assert load_chat_template(gguf).render(HI).startswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant")


# The process


def test_threads_get_their_own_answers() -> None:
    template, wrong = ChatTemplate(EACH, bos_token="", eos_token=""), []

    def ask(n: int) -> None:
        for i in range(30):
            text = template.render([{"role": "user", "content": f"{n}.{i}"}])
            if text != f"[user]{n}.{i}":
                wrong.append(text)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_process_that_died_is_started_anew() -> None:
    assert render("1") == "1"
    chat_template._renderers[0]._process.kill()
    chat_template._renderers[0]._process.wait()
    assert render("2") == "2"


@pytest.mark.parametrize(
    ("program", "message"),
    [("import nosuchmodule", "ended with 1"), ("import time; time.sleep(60)", "longer than 0.5 s")],
)
def test_a_process_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str, message: str
) -> None:
    chat_template._end()
    (tmp_path / "program.py").write_text(program)
    monkeypatch.setattr(chat_template, "_PROGRAM", tmp_path / "program.py")
    monkeypatch.setattr(chat_template, "MAX_WALL_S", 0.5 if "sleep" in program else 30.0)
    with pytest.raises(ChatTemplateError, match=message):
        render("1")
    assert not chat_template._renderers
    monkeypatch.undo()
    assert render("1") == "1"


def test_an_interpreter_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    chat_template._end()
    monkeypatch.setattr("sys.executable", "/nosuch/python")
    with pytest.raises(ChatTemplateError, match="does not start"):
        render("1")


def test_ctrl_c_at_the_terminal_is_not_for_the_process() -> None:
    """Keys go to all processes of a session; the renderer has its own."""
    assert render("1") == "1"
    assert os.getsid(chat_template._renderers[0]._process.pid) != os.getsid(0)


def test_a_long_conversation() -> None:
    messages: Messages = [{"role": "user", "content": "x" * 10_000}] * 300
    assert len(render(EACH, messages)) == 300 * 10_006
