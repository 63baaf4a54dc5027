"""Whether a state goes with a model and a context: what is written down on saving, and compared on loading.

Everything that decides what bits keys and values have is here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from llmkit.engine.context import Context
from llmkit.engine.state.info import Said, StateInfo
from llmkit.files.gguf_cursor import shown
from llmkit.files.state_errors import (
    StateKvTypeError,
    StateModelError,
    StateNumericsError,
    StateQuantizationError,
    StateRopeError,
    StateWindowError,
    damaged,
)
from llmkit.files.state_header import TOKEN, Header
from llmkit.models.model import Model
from llmkit.simd.target import NUMERICS_ID

LAYOUT = 1  # how keys and values lie in a block: docs/state-format.md. Another number for every change.


_described: WeakKeyDictionary[Context, dict[str, Any]] = WeakKeyDictionary()


def describe(ctx: Context, metadata: Mapping[str, str]) -> dict[str, Any]:
    """What the file says about where it comes from. Of a context it is put together once."""
    if ctx not in _described:
        _described[ctx] = _description(ctx)
    return {**_described[ctx], "metadata": {clean(name): clean(text) for name, text in metadata.items()}}


def _description(ctx: Context) -> dict[str, Any]:
    model, layout = ctx.model, ctx.kv.layout
    return {
        "model": {
            "fingerprint": model.fingerprint(),
            "file_fingerprint": model.file_fingerprint(),
            "name": clean(model.name),
            "arch": model.arch,
            "shape": _shape(model),
            "quantization": _quantization(model),
        },
        "numerics_id": NUMERICS_ID,
        "kv": {
            "layout": LAYOUT,
            "type_k": layout.type_k,
            "type_v": layout.type_v,
            "n_rot_k": layout.n_rot_k,
            "n_rot_v": layout.n_rot_v,
            "n_head_kv": layout.n_head_kv,
            "head_dim": layout.head_dim,
        },
        "rope": model.rope_record(ctx.n_ctx),
        "memory": {
            "windows": list(ctx.kv.windows),
            "layers": [list(kind.layers) for kind in ctx.kv.kinds],
            "n_ctx": ctx.n_ctx,
            "swa_full": ctx.params.swa_full,
        },
    }


def clean(text: str) -> str:
    """The text without surrogates, which UTF-8 cannot hold."""
    return text.encode("utf-8", "replace").decode()


def _shape(model: Model) -> list[int]:
    """Sizes that models which differ in their quantisation alone have in common."""
    c = model.config
    return [c.n_vocab, c.n_layer, c.n_embd, c.n_ff, c.n_head, c.n_head_kv, c.head_dim]


def _quantization(model: Model) -> str:
    """The types of the file's tensors and how many there are of each: `f32:61 q4_k:132`."""
    counts: dict[str, int] = {}
    for tensor in model.gguf.tensors.values():
        name = tensor.type_name.lower()
        counts[name] = counts.get(name, 0) + 1
    return " ".join(f"{name}:{n}" for name, n in sorted(counts.items()))


def check_description(ctx: Context, header: Header, info: StateInfo) -> None:
    """Compares what the file says with the model and the context; the errors say which reason comes first."""
    mine, said, place = describe(ctx, {}), Said(header.description, info.path), place_of(info)
    _check_model(mine, said, place)
    if said.get("numerics_id") != mine["numerics_id"]:
        message = f"{place}: computed by kernels with the numerics id {shown(said.text('numerics_id'))}"
        raise StateNumericsError(f"{message}; these have {NUMERICS_ID!r}", "save the state again with this llmkit")
    for name, value in mine["kv"].items():
        if said.get("kv", name) != value:
            message = f"{place}: {_KV_NAMES.get(name, name)} {shown(said.get('kv', name))}; this context has {value!r}"
            raise StateKvTypeError(message, _KV_HINTS.get(name, "save the state again with this llmkit"))
    _check_memory(ctx, header, said, info)
    if header.n_logits not in (0, ctx.model.config.n_vocab):
        raise damaged(place, "its tables are not what its description says")
    if any((run[TOKEN] >= ctx.model.config.n_vocab).any() for run in header.runs):
        raise damaged(place, f"a token that is not in the vocabulary of {ctx.model.config.n_vocab}")


def place_of(info: StateInfo) -> str:
    """The file's name in a message."""
    return shown(info.path, 300)


def _check_memory(ctx: Context, header: Header, said: Said, info: StateInfo) -> None:
    """The file's kinds are those that a context as it says has; with the same --swa-full, if that makes a difference.

    Kinds may be others than ours, where one context is larger than the window and the other is not.
    """
    layout, swa_full = ctx.kv.layout, said.get("memory", "swa_full")
    if not isinstance(swa_full, bool):
        raise damaged(place_of(info), "memory.swa_full is not what it should be")
    kinds = ctx.model.memory_layout(layout.type_k, layout.type_v, info.n_ctx, swa_full=swa_full).kinds
    right = len(kinds) == len(header.kinds) and info.layers == tuple(kind.layers for kind in kinds)
    if not right or said.get("memory", "windows") != list(info.windows):
        raise damaged(place_of(info), "its kinds of memory are not those of a context as it says")
    for kind, record in zip(kinds, header.kinds, strict=True):
        sizes = kind.window, len(kind.layers), kind.layout.block_bytes
        if (record.window, record.n_layer, record.block_bytes) != sizes:
            raise damaged(place_of(info), "its blocks are not of the size that its types have")
    if info.layers != tuple(kind.layers for kind in ctx.kv.kinds) and swa_full != ctx.params.swa_full:
        there, here = ("with" if full else "without" for full in (swa_full, ctx.params.swa_full))
        message = f"{place_of(info)}: saved {there} --swa-full, and this context is {here}"
        raise StateWindowError(message, "give the same --swa-full")


_KV_NAMES = {"type_k": "keys have the type", "type_v": "values have the type"}
_KV_HINTS = {
    "type_k": "give the same -ctk",
    "type_v": "give the same -ctv",
    "n_rot_k": "LLAMA_ATTN_ROT_DISABLE must be set on both sides, or on neither",
    "n_rot_v": "LLAMA_ATTN_ROT_DISABLE must be set on both sides, or on neither",
}


def _check_model(mine: Mapping[str, Any], said: Said, place: str) -> None:
    model, name = mine["model"], shown(said.text("model", "name"))
    same_file = said.text("model", "file_fingerprint") == model["file_fingerprint"]
    hint = f"give -m with the model it was saved with: {name}"
    if not same_file:
        alike = all(said.get("model", key) == model[key] for key in ("arch", "name", "shape"))
        there, here = shown(said.text("model", "quantization"), 200), shown(model["quantization"], 200)
        if alike and there != here:
            message = f"{place}: saved with {name} in another quantisation: {there} there, {here} here"
            raise StateQuantizationError(message, hint)
        raise StateModelError(f"{place}: saved with another model: {name}, not {shown(model['name'])}", hint)
    rope = said.mapping("rope")
    for key, value in mine["rope"].items():
        if rope.get(key) != value:
            message = f"{place}: keys are rotated otherwise: rope {key} is {shown(rope.get(key))} there, {value!r} here"
            raise StateRopeError(message, "give the same RoPE options, --override-kv and, for LongRoPE, context size")
    if said.text("model", "fingerprint") != model["fingerprint"]:
        message = f"{place}: saved with {name} under other metadata (--override-kv)"
        raise StateModelError(message, "give the same --override-kv")
