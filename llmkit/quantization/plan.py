"""What will be done to a file, known before a byte is written: its tensors in order, their types, its metadata.

Owns order, pruning, the model's facts for the rules, and the keys that are written. Reads no tensor. Source: llama.cpp
b11434, llama_model_quantize_impl.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import MetadataError, QuantizeError
from ..files.ggml_types import TYPE_IDS, row_bytes, type_name
from ..files.gguf_cursor import shown
from ..files.gguf_reader import GgufFile
from ..files.gguf_split import SPLIT_COUNT, SPLIT_KEYS, SPLIT_NO, SPLIT_TENSORS
from ..files.gguf_tensors import TensorInfo
from ..files.gguf_values import Entry
from .choose import Chooser, needs_imatrix
from .file_types import guessed_number
from .importance import Importance
from .mixture import Facts
from .options import QuantizeOptions
from .tensor_names import block_span, order, role


@dataclass(frozen=True)
class TensorPlan:
    """One tensor: `info` in the source, `name` and `type` (ggml id) in the output, which is output number `part`.

    instead_of: the type that its rows do not fit, or -1; by_hand: a --tensor-type decided against the default type;
    needs_imatrix: it may not be quantised without weights of importance.
    """

    info: TensorInfo
    name: str
    type: int
    part: int = 0
    instead_of: int = -1
    by_hand: bool = False
    needs_imatrix: bool = False

    @property
    def n_bytes(self) -> int:
        """Bytes in the output."""
        return row_bytes(self.type, self.info.shape[0]) * self.info.n_rows

    @property
    def changes(self) -> bool:
        """Whether it is quantised, not just copied."""
        return self.type != self.info.type


@dataclass(frozen=True)
class Plan:
    """tensors: in the order of writing. metadata: of each output file. n_tensors, n_elements: of the source, with what
    is pruned."""

    options: QuantizeOptions
    tensors: list[TensorPlan]
    metadata: list[dict[str, object]]
    n_tensors: int
    n_elements: int

    @property
    def n_bytes_before(self) -> int:
        """Bytes of the tensors in the source."""
        return sum(tensor.info.n_bytes for tensor in self.tensors)

    @property
    def n_bytes_after(self) -> int:
        """Bytes of the tensors in the output."""
        return sum(tensor.n_bytes for tensor in self.tensors)

    @property
    def fallbacks(self) -> list[TensorPlan]:
        """The tensors whose rows do not fit the type they should have."""
        return [tensor for tensor in self.tensors if tensor.instead_of >= 0]


def make_plan(gguf: GgufFile, options: QuantizeOptions, importance: Importance) -> Plan:
    """Decide everything. Raises QuantizeError where the metadata or a name does not allow it."""
    infos = sorted(gguf.tensors.values(), key=lambda info: order(info.name))
    names, n_left = renamed(infos, options.pruned_layers)
    if options.keep_split:
        infos.sort(key=lambda info: (info.part, info.offset))
    kept = [info for info in infos if names[info.name]]
    new_names = [names[info.name] for info in kept]
    doubled = next((name for name, n in Counter(new_names).items() if n > 1), None)
    if doubled is not None:
        raise QuantizeError(f"{gguf.place}: pruning gives two tensors the name {shown(doubled)}", "Prune other layers.")
    n_attn_v = sum(role(name) == "attn_v" for name in new_names)
    chooser = Chooser(options, model_facts(gguf, options, n_attn_v, bool(importance)), new_names)
    tensors = [_plan_tensor(chooser, info, names[info.name]) for info in kept]
    n_parts = max((tensor.part for tensor in tensors), default=0) + 1
    metadata = _metadata(gguf, options, importance, n_left, n_parts, len(tensors))
    return Plan(options, tensors, metadata, len(infos), sum(info.n_elements for info in infos))


def _plan_tensor(chooser: Chooser, info: TensorInfo, name: str) -> TensorPlan:
    part = info.part if chooser.options.keep_split else 0
    choice = chooser.choose(info, name)
    if choice is None:
        return TensorPlan(info, name, info.type, part)
    instead_of = TYPE_IDS[choice.instead_of] if choice.instead_of else -1
    needs = needs_imatrix(name, choice.type, chooser.file_type)
    return TensorPlan(info, name, TYPE_IDS[choice.type], part, instead_of, choice.by_hand, needs)


def renamed(infos: list[TensorInfo], pruned: frozenset[int]) -> tuple[dict[str, str], int]:
    """The new name of every tensor, empty for those of pruned layers, and the number of layers left."""
    numbers: dict[int, int | None] = {}
    n_left = 0
    names = {}
    for info in infos:
        found = block_span(info.name) if pruned else None
        if found is None:
            names[info.name] = info.name
            continue
        layer, start, end = found
        if layer not in numbers:
            numbers[layer] = None if layer in pruned else n_left
            n_left += layer not in pruned
        number = numbers[layer]
        names[info.name] = "" if number is None else f"{info.name[:start]}{number}{info.name[end:]}"
    return names, n_left


def model_facts(gguf: GgufFile, options: QuantizeOptions, n_attn_v: int, has_imatrix: bool) -> Facts:
    """What the rules ask about the model, --override-kv included."""
    arch = gguf.str("general.architecture")

    def number(key: str, default: int) -> int:
        full = f"{arch}.{key}"
        value: Any = options.overrides.get(full)
        if value is None and isinstance(gguf.metadata.get(full), np.ndarray):
            values = gguf.numbers(full)
            if values.dtype.kind not in "iu":
                raise MetadataError(f"{gguf.place}: {shown(full)} is {gguf.kind(full)}; integers are expected")
            return int(values[0]) if len(values) else default
        return gguf.u32(full, default) if value is None else int(value)

    n_head = number("attention.head_count", 0)
    n_head_kv = number("attention.head_count_kv", n_head)
    return Facts(arch, number("block_count", 0), n_head, n_head_kv, number("expert_count", 0), n_attn_v, has_imatrix)


def _metadata(
    gguf: GgufFile, options: QuantizeOptions, importance: Importance, n_layer: int, n_parts: int, n_tensors: int
) -> list[dict[str, object]]:
    """What is read, with the keys that quantising sets moved to the end; the first part has it all."""
    keys: dict[str, object] = {key: entry for key, entry in gguf.entries.items() if key not in SPLIT_KEYS}
    new: list[tuple[str, object]] = [("general.quantization_version", np.uint32(2))]
    new += [("general.file_type", _file_type(gguf, options))]
    new += [*options.overrides.items(), *importance.metadata.items()]
    if options.pruned_layers:
        new.append((f"{gguf.str('general.architecture')}.block_count", np.uint32(n_layer)))
    for key, value in new:
        keys.pop(key, None)
        keys[key] = value
    if n_parts == 1:
        return [keys]
    return [
        (keys if part == 0 else {})
        | {SPLIT_NO: np.uint16(part), SPLIT_COUNT: np.uint16(n_parts), SPLIT_TENSORS: np.int32(n_tensors)}
        for part in range(n_parts)
    ]


def _file_type(gguf: GgufFile, options: QuantizeOptions) -> object:
    """The number of the file type; a copy keeps the one it has."""
    if not options.file_type.is_copy:
        return np.uint32(options.file_type.number)
    found = gguf.entries.get("general.file_type")
    if isinstance(found, Entry):
        return found
    types = Counter(info.type for info in gguf.tensors.values())
    return np.uint32(guessed_number(type_name(types.most_common(1)[0][0] if types else 0)))
