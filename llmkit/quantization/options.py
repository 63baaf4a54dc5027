"""What can be asked for beside the file type, read from its text forms.

Owns the syntax of --tensor-type and --prune-layers, and what --override-kv writes. Knows no model. Source: llama.cpp
b11434, tools/quantize and common.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UsageError
from ..files import overrides
from ..files.ggml_types import GGML_TYPES, TYPE_IDS
from ..files.gguf_cursor import shown
from ..files.gguf_values import ValueType
from .file_types import FileType

WRITABLE = tuple(name for name in TYPE_IDS if name not in ("Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64"))
"""The tensor types that weights can be turned into."""

MAX_TEXT_BYTES = 127
"""Of keys and texts in metadata overrides, as in llama.cpp."""

_MAX_U32 = (1 << 32) - 1


@dataclass(frozen=True)
class TensorRule:
    """A --tensor-type: tensors whose name contains a match of `pattern` get `type`."""

    pattern: re.Pattern[str]
    type: str


@dataclass(frozen=True)
class QuantizeOptions:
    """How to quantise. output_type, embedding_type: tensor types, or None to let the rules decide."""

    file_type: FileType
    pure: bool = False
    leave_output: bool = False
    output_type: str | None = None
    embedding_type: str | None = None
    tensor_rules: tuple[TensorRule, ...] = ()
    allow_requantize: bool = False
    overrides: dict[str, Any] = field(default_factory=dict)
    pruned_layers: frozenset[int] = frozenset()
    keep_split: bool = False


def ggml_name(type_id: int) -> str:
    """A tensor type as ggml spells it: q4_K, iq2_xxs, f32."""
    return GGML_TYPES[type_id].name.lower().replace("_k", "_K")


def parse_tensor_type(text: str, option: str) -> str:
    """The tensor type of a name in any case; UsageError when weights cannot be turned into it."""
    if text.upper() not in WRITABLE:
        raise UsageError(f"{option}: invalid tensor type {shown(text)}", f"One of {', '.join(WRITABLE)}.")
    return text.upper()


def parse_tensor_rule(text: str) -> TensorRule:
    """`REGEX=TYPE`; the expression is lower-cased, as names are."""
    pattern, equals, type = text.partition("=")
    if not equals or not pattern or not type:
        raise UsageError(f"malformed tensor type {shown(text)}", "Give NAME=TYPE, such as attn_v=q8_0.")
    try:
        compiled = re.compile(pattern.lower())
    except re.error as error:
        raise UsageError(f"--tensor-type: {shown(pattern)} is no regular expression: {error}") from None
    return TensorRule(compiled, parse_tensor_type(type, "--tensor-type"))


def read_tensor_rules(path: Path) -> list[TensorRule]:
    """The rules in a file, separated by spaces or newlines."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"--tensor-type-file: {shown(path)} cannot be read: {reason}") from None
    return [parse_tensor_rule(word) for word in text.split()]


def parse_override(text: str) -> tuple[str, Any]:
    """`KEY=TYPE:VALUE`, to the key and the value that is written.

    Integers become UINT32, without their sign, and floats FLOAT32, as llama-quantize writes them.
    """
    key, entry = overrides.parse_override(text)
    overrides.refuse_layout(key)
    value: Any = entry.value
    if any(len(part.encode()) > MAX_TEXT_BYTES for part in (key, value) if isinstance(part, str)):
        raise UsageError(f"{overrides.OPTION} {shown(text)}: a text of more than {MAX_TEXT_BYTES} bytes")
    if entry.type is ValueType.INT64:
        if abs(value) > _MAX_U32:
            raise UsageError(f"{overrides.OPTION} {shown(text)}: {value} does not fit into 32 bits")
        return key, np.uint32(abs(value))
    if entry.type is ValueType.FLOAT64:
        return key, np.float32(value)
    return key, np.bool_(value) if entry.type is ValueType.BOOL else value


def parse_layers(text: str) -> frozenset[int]:
    """`L0,L1,...`: numbers of layers."""
    words = text.split(",")
    wrong = next((word for word in words if not word.strip().isdecimal() or len(word) > 9), None)
    if wrong is not None:
        raise UsageError(f"--prune-layers: invalid layer {shown(wrong)}", "Give numbers such as 20,21,22.")
    return frozenset(int(word) for word in words)
