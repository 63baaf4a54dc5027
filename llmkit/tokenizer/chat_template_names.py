"""The chat templates that can be named: llama.cpp's list, each with the text that llama_chat_apply_template makes.

Owns the formats as data (llama-chat.cpp, build 11434) and how they become Jinja2 texts. All follow one pattern: what
stands before and behind a message of each role, and what begins the answer.
"""

from dataclasses import dataclass

Pair = tuple[str, str]

ROLE = "ROLE"
"""Stands for the message's role in what comes before its text."""


@dataclass(frozen=True)
class Format:
    """A message's text stands between the two texts of its role; a role that is none of the three counts as the user's.

    generation: begins the answer. start: begins the whole. first, later: begin a turn, which ends with an answer.
    between: before each message but the first. without_system: instead of a system prompt that is not there.
    trimmed: the roles whose texts are stripped. merged: the system prompt goes into the user's next message, with
    this behind it.
    """

    system: Pair
    user: Pair
    assistant: Pair
    generation: str
    start: str = ""
    first: str = ""
    later: str = ""
    between: str = ""
    without_system: str = ""
    trimmed: tuple[str, ...] = ()
    merged: str | None = None

    def to_jinja(self) -> str:
        """The template's text."""
        return "".join(
            (
                _print(self.start),
                _if("not messages or messages[0].role != 'system'", _print(self.without_system)),
                "{% set ns = namespace(system='') %}{% for m in messages %}",
                _if("loop.first", _print(self.first), _print(self.between) + self._turn()),
                "{% if m.role == 'system' %}", self._system(),
                "{% elif m.role == 'assistant' %}", self._message("assistant", self.assistant),
                "{% else %}", self._message("user", self.user), "{% endif %}{% endfor %}",
                _if("add_generation_prompt", _print(self.generation)),
            )
        )  # fmt: skip

    def _turn(self) -> str:
        return _if("loop.previtem.role == 'assistant'", _print(self.later)) if self.later else ""

    def _system(self) -> str:
        if self.merged is None:
            return self._message("system", self.system)
        return f"{{% set ns.system = {self._text('system')} ~ {_quoted(self.merged)} %}}"

    def _message(self, role: str, pair: Pair) -> str:
        merged = "{{ ns.system }}{% set ns.system = '' %}" if role == "user" and self.merged is not None else ""
        return f"{_print(pair[0])}{merged}{{{{ {self._text(role)} }}}}{_print(pair[1])}"

    def _text(self, role: str) -> str:
        return "m.content|trim" if role in self.trimmed else "m.content"


def _quoted(text: str) -> str:
    """A literal of Jinja2."""
    for character, escape in (("\\", "\\\\"), ("'", "\\'"), ("\n", "\\n")):
        text = text.replace(character, escape)
    return f"'{text}'"


def _print(text: str) -> str:
    """What prints the text, with the role where it stands."""
    if not text:
        return ""
    return "{{ " + " ~ m.role ~ ".join(map(_quoted, text.split(ROLE))) + " }}"


def _if(condition: str, then: str, otherwise: str = "") -> str:
    if not then and not otherwise:
        return ""
    return f"{{% if {condition} %}}{then}" + (f"{{% else %}}{otherwise}" if otherwise else "") + "{% endif %}"


def _same(before: str, after: str, generation: str, **more: object) -> Format:
    """All roles alike."""
    return Format((before, after), (before, after), (before, after), generation, **more)  # type: ignore[arg-type]


ALL = ("system", "user", "assistant")
_BAILING = [f"<role>{role}</role>" for role in ("SYSTEM", "HUMAN", "ASSISTANT")]
_COHERE = [f"<|START_OF_TURN_TOKEN|><|{role}_TOKEN|>" for role in ("SYSTEM", "USER", "CHATBOT")]
_COHERE_END = "<|END_OF_TURN_TOKEN|>"
_SENTENCE_END = "<｜end▁of▁sentence｜>"
_EXAONE = Format(
    ("[|system|]", "[|endofturn|]\n"), ("[|user|]", "\n"), ("[|assistant|]", "[|endofturn|]\n"), "[|assistant|]",
    trimmed=ALL,
)  # fmt: skip
_GRANITE = _same(
    "<|start_of_role|>ROLE<|end_of_role|>", "<|end_of_text|>\n", "<|start_of_role|>assistant<|end_of_role|>"
)
_SYS = ("<<SYS>>\n", "\n<</SYS>>\n\n")
_INST = {"first": "[INST] ", "later": "[INST] "}


def _llama2(system: Pair, **more: object) -> Format:
    return Format(system, ("", " [/INST]"), ("", "</s>"), "", **(_INST | more))  # type: ignore[arg-type]


FORMATS: dict[str, Format] = {
    "bailing": Format((_BAILING[0], ""), (_BAILING[1], ""), (_BAILING[2], ""), _BAILING[2]),
    "bailing-think": Format((_BAILING[0], ""), (_BAILING[1], ""), (_BAILING[2], ""), _BAILING[2] + "<think>"),
    "bailing2": Format(
        (_BAILING[0], "<|role_end|>"), (_BAILING[1], "<|role_end|>"), (_BAILING[2], "<|role_end|>"), _BAILING[2],
        without_system=f"{_BAILING[0]}detailed thinking off<|role_end|>",
    ),
    "chatglm3": _same("<|ROLE|>\n ", "", "<|assistant|>", start="[gMASK]sop"),
    "chatglm4": _same("<|ROLE|>\n", "", "<|assistant|>\n", start="[gMASK]<sop>"),
    "chatml": _same("<|im_start|>ROLE\n", "<|im_end|>\n", "<|im_start|>assistant\n"),
    "command-r": Format(
        (_COHERE[0], _COHERE_END), (_COHERE[1], _COHERE_END), (_COHERE[2], _COHERE_END), _COHERE[2], trimmed=ALL
    ),
    "deepseek": Format(
        ("", ""), ("### Instruction:\n", "\n"), ("### Response:\n", "\n<|EOT|>\n"), "### Response:\n"
    ),
    "deepseek-ocr": _same("", "", ""),
    "deepseek2": Format(("", "\n\n"), ("User: ", "\n\n"), ("Assistant: ", _SENTENCE_END), "Assistant:"),
    "deepseek3": Format(("", "\n\n"), ("<｜User｜>", ""), ("<｜Assistant｜>", _SENTENCE_END), "<｜Assistant｜>"),
    "exaone-moe": _same("<|ROLE|>\n", "<|endofturn|>\n", "<|assistant|>\n", trimmed=ALL),
    "exaone3": _EXAONE,
    "exaone4": _EXAONE,
    "falcon3": _same("<|ROLE|>\n", "\n", "<|assistant|>\n"),
    "gemma": Format(
        ("", ""), ("<start_of_turn>user\n", "<end_of_turn>\n"), ("<start_of_turn>model\n", "<end_of_turn>\n"),
        "<start_of_turn>model\n", trimmed=ALL, merged="\n\n",
    ),
    "gigachat": Format(
        ("", "<|message_sep|>"),
        ("user<|role_sep|>", "<|message_sep|>available functions<|role_sep|>[]<|message_sep|>"),
        ("assistant<|role_sep|>", "<|message_sep|>"), "assistant<|role_sep|>", start="<s>",
    ),
    "glmedge": _same("<|ROLE|>\n", "", "<|assistant|>"),
    "gpt-oss": Format(
        ("<|start|>system<|message|>", "<|end|>"), ("<|start|>ROLE<|message|>", "<|end|>"),
        ("<|start|>assistant<|message|>", "<|return|>"), "<|start|>assistant",
    ),
    "granite": _GRANITE,
    "granite-4.0": _GRANITE,
    "granite-4.1": _GRANITE,
    "grok-2": Format(
        ("System: ", "<|separator|>\n\n"), ("Human: ", "<|separator|>\n\n"), ("Assistant: ", "<|separator|>\n\n"),
        "Assistant:", trimmed=("system", "user"),
    ),
    "hunyuan-dense": Format(
        ("", "<｜hy_place▁holder▁no▁3｜>"), ("<｜hy_User｜>", "<｜hy_Assistant｜>"),
        ("<｜hy_Assistant｜>", "<｜hy_place▁holder▁no▁2｜>"), "",
    ),
    "hunyuan-moe": Format(
        ("<|startoftext|>", "<|extra_4|>"), ("<|startoftext|>", "<|extra_0|>"), ("", "<|eos|>"), ""
    ),
    "hunyuan-vl": Format(
        ("", "<｜hy_place▁holder▁no▁3｜>"), ("", "<｜hy_User｜>"), ("", "<｜hy_Assistant｜>"), "",
        start="<｜hy_begin▁of▁sentence｜>",
    ),
    "kimi-k2": Format(
        ("<|im_system|>system<|im_middle|>", "<|im_end|>"), ("<|im_user|>user<|im_middle|>", "<|im_end|>"),
        ("<|im_assistant|>assistant<|im_middle|>", "<|im_end|>"), "<|im_assistant|>assistant<|im_middle|>",
    ),
    "llama2": _llama2(("", "\n")),
    "llama2-sys": _llama2(_SYS),
    "llama2-sys-bos": _llama2(_SYS, later="<s>[INST] "),
    "llama2-sys-strip": _llama2(_SYS, trimmed=ALL),
    "llama3": _same(
        "<|start_header_id|>ROLE<|end_header_id|>\n\n", "<|eot_id|>",
        "<|start_header_id|>assistant<|end_header_id|>\n\n", trimmed=ALL,
    ),
    "llama4": _same(
        "<|header_start|>ROLE<|header_end|>\n\n", "<|eot|>", "<|header_start|>assistant<|header_end|>\n\n", trimmed=ALL
    ),
    "megrez": _same("<|role_start|>ROLE<|role_end|>", "<|turn_end|>", "<|role_start|>assistant<|role_end|>"),
    "minicpm": Format(("", ""), ("<用户>", "<AI>"), ("", ""), "", trimmed=ALL),
    "mistral-v1": Format(("", "\n\n"), ("", " [/INST]"), (" ", "</s>"), "", first=" [INST] ", later=" [INST] "),
    "mistral-v3": Format(
        ("", "\n\n"), ("", "[/INST]"), (" ", "</s>"), "", first="[INST] ", later="[INST] ", trimmed=("assistant",)
    ),
    "mistral-v3-tekken": Format(("", "\n\n"), ("", "[/INST]"), ("", "</s>"), "", first="[INST]", later="[INST]"),
    "mistral-v7": Format(
        ("[SYSTEM_PROMPT] ", "[/SYSTEM_PROMPT]"), ("[INST] ", "[/INST]"), (" ", "</s>"), ""
    ),
    "mistral-v7-tekken": Format(
        ("[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"), ("[INST]", "[/INST]"), ("", "</s>"), ""
    ),
    "monarch": _same("ROLE\n", "</s>\n", "<s>assistant\n", between="<s>"),
    "openchat": Format(
        ("", "<|end_of_turn|>"), ("GPT4 Correct User: ", "<|end_of_turn|>"),
        ("GPT4 Correct Assistant: ", "<|end_of_turn|>"), "GPT4 Correct Assistant:",
    ),
    "orion": Format(("", ""), ("Human: ", "\n\nAssistant: </s>"), ("", "</s>"), "", merged="\n\n"),
    "pangu-embedded": Format(
        ("[unused9]系统：", "[unused10]"), ("[unused9]用户：", "[unused10]"), ("[unused9]助手：", "[unused10]"),
        "[unused9]助手：", without_system="[unused9]系统：[unused10]",
    ),
    "phi3": _same("<|ROLE|>\n", "<|end|>\n", "<|assistant|>\n"),
    "phi4": _same("<|im_start|>ROLE<|im_sep|>", "<|im_end|>", "<|im_start|>assistant<|im_sep|>"),
    "rwkv-world": Format(
        ("System: ", "\n\n"), ("User: ", "\n\n"), ("Assistant: ", "\n\n"), "Assistant:", trimmed=ALL
    ),
    "seed_oss": _same("<seed:bos>ROLE\n", "<seed:eos>", "<seed:bos>assistant\n", trimmed=("assistant",)),
    "smolvlm": Format(
        ("", "\n\n"), ("User: ", "<end_of_utterance>\n"), ("Assistant: ", "<end_of_utterance>\n"), "Assistant:",
        start="<|im_start|>",
    ),
    "solar-open": _same("<|begin|>ROLE<|content|>", "<|end|>", "<|begin|>assistant"),
    "vicuna": Format(("", "\n\n"), ("USER: ", "\n"), ("ASSISTANT: ", "</s>\n"), "ASSISTANT:"),
    "vicuna-orca": Format(("SYSTEM: ", "\n"), ("USER: ", "\n"), ("ASSISTANT: ", "</s>\n"), "ASSISTANT:"),
    "yandex": Format(
        ("", ""), (" Пользователь: ", "\n\n"), (" Ассистент: ", "\n\n"), " Ассистент:[SEP]", merged="\n"
    ),
    "zephyr": _same("<|ROLE|>\n", "<|endoftext|>\n", "<|assistant|>\n"),
}  # fmt: skip
"""yandex: llama.cpp drops the system prompt; here it goes before the user's message."""

BUILT_IN: dict[str, str] = {name: format.to_jinja() for name, format in FORMATS.items()}
