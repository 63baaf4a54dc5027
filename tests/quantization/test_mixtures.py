"""Every decision about a tensor's type is llama-quantize's, for every file type: see mixture_cases."""

import json
from pathlib import Path

import pytest

from llmkit.errors import LlmkitError
from llmkit.files.gguf_reader import open_gguf
from llmkit.quantization.file_types import FILE_TYPES, parse_file_type
from llmkit.quantization.importance import Importance, load_importance
from llmkit.quantization.options import (
    QuantizeOptions,
    ggml_name,
    parse_layers,
    parse_override,
    parse_tensor_rule,
    parse_tensor_type,
)
from llmkit.quantization.plan import make_plan
from tests.quantization.mixture_cases import (
    CASES,
    LETTERS,
    RECORDED,
    MixtureCase,
    types_of,
    write_case,
    write_importance,
)

EXPECTED = json.loads(RECORDED.read_text(encoding="utf-8"))


def options_of(case: MixtureCase, type: str) -> QuantizeOptions:
    """The case's flags as the command would read them."""
    flags = list(case.flags)
    values = {flag: [flags[i + 1] for i in range(len(flags) - 1) if flags[i] == flag] for flag in flags}

    def fixed(flag: str) -> str | None:
        return parse_tensor_type(values[flag][0], flag) if flag in values else None

    return QuantizeOptions(
        parse_file_type(type),
        pure="--pure" in flags,
        leave_output="--leave-output-tensor" in flags,
        output_type=fixed("--output-tensor-type"),
        embedding_type=fixed("--token-embedding-type"),
        tensor_rules=tuple(parse_tensor_rule(text) for text in values.get("--tensor-type", [])),
        overrides=dict(parse_override(text) for text in values.get("--override-kv", [])),
        pruned_layers=parse_layers(values["--prune-layers"][0]) if "--prune-layers" in values else frozenset(),
    )


@pytest.mark.parametrize("name", CASES)
def test_decisions(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    write_case(case, tmp_path / "m.gguf")
    importance = Importance()
    if case.imatrix:
        write_importance(case, tmp_path / "i.gguf")
        importance, _ = load_importance(str(tmp_path / "i.gguf"), [], [])
    wrong = {}
    with open_gguf(tmp_path / "m.gguf") as gguf:
        for type in types_of(case):
            try:
                plan = make_plan(gguf, options_of(case, type), importance)
                found = "".join(LETTERS[ggml_name(t.type)] if t.changes else "." for t in plan.tensors)
            except LlmkitError:
                found = "error"
            expected = EXPECTED[name][type]
            if found != (expected if not expected.startswith("error") else "error"):
                wrong[type] = (found, expected)
    assert not wrong


def test_every_file_type_is_recorded() -> None:
    made = {t.name for t in FILE_TYPES} - {"COPY", "Q3_K", "Q4_K", "Q5_K"}
    assert set(EXPECTED["dense"]) == set(EXPECTED["8 experts"]) == made
    assert set(EXPECTED) == set(CASES)
