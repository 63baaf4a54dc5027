"""A builder that only counts: takes what `graph` takes, and knows what a model reads and how much memory it needs.

Building a model on it asks for every tensor, and so checks the file as loading does, but imports no kernel and compiles
nothing. Each method says what the one of the same name in Graph reads and writes; a test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from llmkit.files.gguf_reader import GgufFile
from llmkit.kernels import activation_tile as at
from llmkit.models.config import Config, read_config
from llmkit.models.registry import family
from llmkit.models.transformer import Transformer
from llmkit.models.values import Op, Slots, Value, chain_rows, find_barriers, place_values, row_stride
from llmkit.models.weights import Matrix, Weights
from llmkit.quants.registry import type_sizes

if TYPE_CHECKING:
    from llmkit.models.graph import Graph

Builder: TypeAlias = "Graph | Outline"

_PICK_BYTES, _SLOTS_HEAD = 24, 16  # of kernels.experts


@dataclass
class Outline:
    """The operations of a model, and the tables whose rows are read where they lie in the file."""

    ops: list[Op] = field(default_factory=list)
    tables: dict[str, Matrix] = field(default_factory=dict)
    kv: Value = field(default_factory=lambda: Value("kv", 0, 0))
    _quantized: dict[tuple[Value, int], Value] = field(default_factory=dict)

    def arena_bytes(self, logits: Value, n_rows: int) -> int:
        """Memory for all values of a pass of n_rows rows but the logits."""
        steps = chain_rows(self.ops)
        return place_values(steps, find_barriers(steps), n_rows, logits)[1]

    def _add(self, name: str, reads: list[Value], writes: list[Value], by_rows: bool = False) -> None:
        rows_of = writes[0].rows
        if isinstance(rows_of, Slots):
            assert rows_of.tokens is not None
            reads = [*reads, rows_of, rows_of.tokens]
        for value in writes:
            for key in [k for k in self._quantized if k[0] is value]:
                del self._quantized[key]
        self.ops.append(Op(name, 0, (), {}, reads, writes, by_rows))

    def _value(self, name: str, n_cols: int, rows: str | Slots = "tokens") -> Value:
        return Value(name, n_cols, row_stride(n_cols), rows=rows)

    def _into(self, name: str, x: Value, out: Value, into: Value | None, by_rows: bool = False) -> Value:
        self._add(name, [x, out] if into else [x], [out], by_rows)
        return out

    def embed(self, table: Matrix, scale: float = 1.0, *, of_positions: bool = False) -> Value:
        self.tables[table.name] = table
        out = self._value("embd", table.n_cols)
        self._add("embed", [], [out])
        return out

    def gather_outputs(self, x: Value) -> Value:
        out = self._value("out", x.n_cols, "out")
        self._add("gather", [x], [out])
        return out

    def rms_norm(self, x: Value, weight: int, eps: float, *, n_groups: int = 1, into: Value | None = None) -> Value:
        return self._into("rms_norm", x, into or self._value("norm", x.n_cols, x.rows), into, True)

    def rms_norm_in_place(self, x: Value, weight: int, eps: float, n_groups: int) -> None:
        self._add("rms_norm", [x], [x], True)

    def layer_norm(
        self, x: Value, weight: int, bias: int, eps: float, *, n_groups: int = 1, weight_stride: int = 0,
        in_place: bool = False,
    ) -> Value:  # fmt: skip
        out = x if in_place else self._value("norm", x.n_cols, x.rows)
        self._add("layer_norm", [x], [out], True)
        return out

    def activate(self, function: str, gate: Value, up: Value | None = None) -> Value:
        out = self._value("activated", gate.n_cols, gate.rows)
        self._add(function, [gate, up] if up else [gate], [out], True)
        return out

    def clamp(self, x: Value, limit: float) -> None:
        self._add("clamp", [x], [x], True)

    def scale_rows(self, x: Value, factors: int, n: int) -> None:
        self._add("scale_rows", [x], [x], True)

    def softcap(self, x: Value, cap: float) -> None:
        self._add("softcap", [x], [x])

    def _activations(self, x: Value, kind: int) -> Value:
        if (x, kind) not in self._quantized:
            out = Value(f"{x.name}_{at.NAMES[kind]}", x.n_cols, 0, at.group_bytes(kind, x.n_cols), x.rows)
            self._add("quantize", [x], [out], True)
            self._quantized[x, kind] = out
        return self._quantized[x, kind]

    def matmul(self, x: Value, w: Matrix, *, bias: int = 0, into: Value | None = None) -> Value:
        activations = self._activations(x, w.type.activation)
        return self._into("matmul", activations, into or self._value(w.name, w.n_rows, x.rows), into)

    def affine(self, x: Value, scale: int, *, before: int = 0, after: int = 0, into: Value | None = None) -> Value:
        return self._into("affine", x, into or self._value("affine", x.n_cols, x.rows), into)

    def route(self, logits: Value, n_used: int, *, softmax: bool, normalise: bool, scale: float) -> Slots:
        n = logits.n_cols
        picks = Value("picks", 0, -(-_PICK_BYTES * n_used // 64) * 64)
        slots = Slots("slots", 0, 0, fixed=_SLOTS_HEAD + 24 * n, n_expert=n, n_used=n_used, picks=picks)
        slots.tokens = Value("slot_tokens", 0, 8, rows=slots)
        self._add("route", [logits], [picks, logits], True)
        self._add("sort", [picks], [slots, slots.tokens, picks])
        return slots

    def spread(self, x: Value, slots: Slots) -> Value:
        assert slots.tokens is not None
        out = self._value("spread", x.n_cols, slots)
        self._add("spread", [x, slots.tokens], [out], True)
        return out

    def matmul_experts(self, x: Value, w: Matrix, *, scales: int = 0, biases: int = 0) -> Value:
        assert isinstance(x.rows, Slots)
        activations = self._activations(x, w.type.activation)
        out = self._value(w.name, w.n_rows // x.rows.n_expert, x.rows)
        self._add("matmul_experts", [activations], [out])
        return out

    def combine(self, x: Value, into: Value | None = None) -> Value:
        assert isinstance(x.rows, Slots)
        assert x.rows.picks is not None
        out = into or self._value("combined", x.n_cols)
        self._add("combine", [x, x.rows.picks] + ([out] if into else []), [out], True)
        return out

    def rope_table(self, frequencies: int, n_rot: int, scale: float = 1.0) -> Value:
        out = Value("rope", n_rot, 4 * n_rot)
        self._add("rope_table", [], [out])
        return out

    def rope_store(self, q: Value, k: Value, v: Value, table: Value | None, layer: int, *, interleaved: bool) -> None:
        self._add("rope_store", [q, k, v] if table is None else [q, k, v, table], [q, k, self.kv])

    def attention(
        self, q: Value, layer: int, *, scale: float, window: int = 0, softcap: float = 0.0, slopes: int = 0,
        sinks: int = 0,
    ) -> Value:  # fmt: skip
        out = self._value("attn", q.n_cols)
        self._add("attention", [q, self.kv], [out])
        return out


@dataclass(frozen=True)
class Outlined:
    """A file that can be loaded: its sizes, its tensors, its operations."""

    config: Config
    weights: Weights
    outline: Outline
    logits: Value

    @property
    def packed_bytes(self) -> int:
        """Of all matrices, as tiles."""
        return sum(matrix.packed_bytes for matrix in self.weights.matrices.values())

    @property
    def table_bytes(self) -> int:
        """Of the tables that are read in the file."""
        return sum(t.n_rows * t.type.row_bytes(t.n_cols) for t in self.outline.tables.values())


def outline_model(gguf: GgufFile, n_ctx: int = 0) -> Outlined:
    """The outline for a context of n_ctx tokens (0: as trained); raises whatever loading the file would."""
    kind = family(gguf.str("general.architecture"))
    weights = Weights(gguf, type_sizes)
    config = read_config(gguf, weights.n_vocab(), kind)
    for size in (1, config.n_ctx_train, n_ctx or config.n_ctx_train):
        outline = Outline()
        logits = Transformer(outline, kind, config, weights, size).build()
    return Outlined(config, weights, outline, logits)
