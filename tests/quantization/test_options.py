"""The text forms of options, and the file types' names and numbers."""

from pathlib import Path

import numpy as np
import pytest

from llmkit.errors import UsageError
from llmkit.quantization.file_types import FILE_TYPES, find_file_type, guessed_number, parse_file_type
from llmkit.quantization.options import (
    parse_layers,
    parse_override,
    parse_tensor_rule,
    parse_tensor_type,
    read_tensor_rules,
)


def test_every_name_and_number() -> None:
    for file_type in FILE_TYPES:
        assert find_file_type(file_type.name.lower()) is file_type
        found = find_file_type(str(file_type.number))
        assert found is not None
        assert (found.number, found.default) == (file_type.number, file_type.default or "F32")
    assert find_file_type("0").name == "F32"  # type: ignore[union-attr]
    for text in ("", "39", "NVFP4", "4", "-1", "Q4", "Q4_K_M.gguf", "1.5", "²"):
        assert find_file_type(text) is None
        with pytest.raises(UsageError):
            parse_file_type(text)


def test_guesses() -> None:
    """llama.cpp's file types of files that have none."""
    expected = {
        "F32": 0,
        "F16": 1,
        "Q3_K": 12,
        "Q4_K": 15,
        "Q5_K": 17,
        "IQ2_XS": 20,
        "IQ2_S": 28,
        "IQ3_S": 26,
        "Q2_K": 10,
    }
    assert {name: guessed_number(name) - 1024 for name in expected} == expected


def test_overrides() -> None:
    assert parse_override("a.b=int:-7") == ("a.b", np.uint32(7))
    assert parse_override("a=float:0.1") == ("a", np.float32(0.1))
    assert parse_override("a=bool:true") == ("a", np.True_)
    assert parse_override("a=str:x=int:3, y") == ("a", "x=int:3, y")
    too_long = f"a=str:{'x' * 128}"
    for text in ("a", "a=1", "a=int:", "a=int:x", "a=int:4294967296", "a=bool:1", "a=u8:1", "=int:1", too_long,
                 "general.alignment=int:8", "split.count=int:3", "k" * 128 + "=int:1"):  # fmt: skip
        with pytest.raises(UsageError):
            parse_override(text)


def test_tensor_rules(tmp_path: Path) -> None:
    rule = parse_tensor_rule("Attn_V=q8_0")
    assert rule.type == "Q8_0"
    assert rule.pattern.search("blk.0.attn_v.weight")
    for text in ("", "a", "=q8_0", "a=", "a=q9", "(=q8_0", "a=q8_1", "a=i32"):
        with pytest.raises(UsageError):
            parse_tensor_rule(text)
    (tmp_path / "rules").write_text("a=q4_0 b=Q5_0\n\nc=f16\n")
    assert [rule.type for rule in read_tensor_rules(tmp_path / "rules")] == ["Q4_0", "Q5_0", "F16"]
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for name in ("no", "binary"):
        with pytest.raises(UsageError):
            read_tensor_rules(tmp_path / name)
    with pytest.raises(UsageError):
        parse_tensor_type("x", "--output-tensor-type")


def test_layers() -> None:
    assert parse_layers("3,1,3") == {1, 3}
    for text in ("", "a", "1,,2", "-1", "9999999999"):
        with pytest.raises(UsageError):
            parse_layers(text)
