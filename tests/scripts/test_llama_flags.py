"""The check of the table of llama.cpp's flags against help texts: it sees what is new, gone and changed."""

from pathlib import Path

import pytest

from llmkit.shell.llama_flags import EVERY_TOOL, all_flags
from scripts import llama_flags

HEAD = """----- common params -----

-h,    --help, --usage                  print usage and exit
"""


def described(changed: dict[str, str]) -> dict[str, str]:
    """A help text for each tool that says what the table says; `changed`: other words for some lines."""
    texts = {}
    for tool in llama_flags.TOOLS:
        lines = []
        for flag in all_flags():
            if (EVERY_TOOL in flag.tools or tool in flag.tools) and not llama_flags.REMOVED & set(flag.names):
                head = ", ".join(flag.names)
                value = {0: "", 1: " N", 2: " START END"}[flag.n_values]
                line = f"{head}{value}\n{' ' * 40}what it does{f' (env: {flag.env})' if flag.env else ''}"
                lines.append(changed.get(flag.names[0], line))
        texts[tool] = HEAD + "\n".join(lines) + "\n\nexample usage:\n\n  text: -m x\n"
    return texts


def differences(monkeypatch: pytest.MonkeyPatch, **changed: str) -> list[str]:
    texts = described({name.replace("_", "-"): text for name, text in changed.items()})
    monkeypatch.setattr(llama_flags, "help_text", lambda folder, tool: texts[tool])
    return list(dict.fromkeys(llama_flags.differences(Path())))


def test_the_table_agrees_with_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    assert differences(monkeypatch) == []


def test_what_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert differences(monkeypatch, __temp="--heat N  (env: LLAMA_ARG_HEAT)") == [
        *(f"new in {tool}: --heat (LLAMA_ARG_HEAT)" for tool in llama_flags.TOOLS),
        "gone: --temp",
        "gone: --temperature",
    ]
    assert differences(monkeypatch, __metrics="--metrics N                             (env: OTHER)") == [
        "changed in server: --metrics has the variable OTHER, in the table LLAMA_ARG_ENDPOINT_METRICS",
        "changed in server: --metrics takes 1 values, in the table 0",
    ]


def test_it_reads_wide_and_narrow_entries() -> None:
    text = """-c,    --ctx-size N                     size (default: 0)
                                        (env: LLAMA_ARG_CTX_SIZE)
--control-vector-layer-range START END
                                        layer range
-kvo,  --kv-offload, -nkvo, --no-kv-offload
                                        whether (env: X)
--fim-qwen-1.5b-default                 use it
"""
    found = [(flag.names, flag.n_values, flag.env) for flag in llama_flags.flags_in(text)]
    assert found == [
        (("-c", "--ctx-size"), 1, "LLAMA_ARG_CTX_SIZE"),
        (("--control-vector-layer-range",), 2, ""),
        (("-kvo", "--kv-offload", "-nkvo", "--no-kv-offload"), 0, "X"),
        (("--fim-qwen-1.5b-default",), 0, ""),
    ]
