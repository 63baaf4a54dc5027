"""The builder that a model family uses: each call adds an operation; values are float32 rows, one a token.

Owns the list of operations and what each reads and writes. Knows no addresses of values: `plan` gives them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from llmkit.kernels import activation, attention, experts, kv_shift, kv_store, norm, quantize, rope, rows
from llmkit.kernels import activation_tile as at
from llmkit.kernels import matmul as mm
from llmkit.kernels import matmul_experts as me
from llmkit.kernels.kv_types.registry import hadamard_address, kv_type
from llmkit.memory.kinds import MemoryLayout
from llmkit.memory.kv_layout import KvLayout
from llmkit.models.input_squares import InputSquares
from llmkit.models.inputs import PlanInputs
from llmkit.models.values import Op, Slots, Value, row_stride
from llmkit.models.weights import Matrix


def float_bits(value: float) -> int:
    """The bits of a float32 as a number for an argument block."""
    return int(struct.unpack("<i", struct.pack("<f", value))[0])


_QUANTIZE = {at.F32: quantize.to_f32, at.Q8_32: quantize.to_q8_32, at.Q8_256: quantize.to_q8_256}


@dataclass
class Graph:
    """Operations in order. `kv_written` stands for the cells of the KV cache, so that order is kept."""

    inputs: PlanInputs
    memory: MemoryLayout
    block_addresses: list[int]
    ops: list[Op] = field(default_factory=list)
    kv: Value = field(default_factory=lambda: Value("kv", 0, 0))
    collector: InputSquares | None = None
    _quantized: dict[tuple[Value, int], Value] = field(default_factory=dict)

    def _add(
        self, name: str, kernel: Any, fields: Sequence[str], reads: list[Value], writes: list[Value], **args: Any
    ) -> None:
        """Appends an operation. A row kernel has neither counter nor n_rows."""
        rows_of = writes[0].rows
        if isinstance(rows_of, Slots):
            assert rows_of.tokens is not None
            reads = [*reads, rows_of, rows_of.tokens]  # their number, and which are empty
        by_rows = "n_rows" not in fields
        if not by_rows:
            args["n_rows"] = self.n_rows_at(rows_of)
        assert set(args) | {"counter"} == set(fields) | {"counter"}, set(args) ^ set(fields)
        for value in writes:
            for key in [k for k in self._quantized if k[0] is value]:
                del self._quantized[key]
        self.ops.append(Op(name, kernel.address, fields, args, reads, writes, by_rows))

    def n_rows_at(self, rows: str | Slots) -> int | Slots:
        """Where the number of rows of this kind stands: an address, or the value that begins with it."""
        if isinstance(rows, Slots):
            return rows
        return self.inputs.n_out_address if rows == "out" else self.inputs.n_tokens_address

    def _value(self, name: str, n_cols: int, rows: str | Slots = "tokens") -> Value:
        return Value(name, n_cols, row_stride(n_cols), rows=rows)

    # -- rows -----------------------------------------------------------------------------------------------------

    def embed(self, table: Matrix, scale: float = 1.0, *, of_positions: bool = False) -> Value:
        """Rows of the embedding table for the tokens (or for their positions), times `scale`."""
        out, kind = self._value("embd", table.n_cols), table.type
        indices = self.inputs.positions if of_positions else self.inputs.tokens
        self._add(
            "embed", rows.embed, rows.EMBED_FIELDS, [], [out],
            indices=indices.ctypes.data, index_bytes=indices.itemsize, last=table.n_rows - 1, w=table.raw,
            row_bytes=kind.row_bytes(table.n_cols), n_blocks=table.n_cols // kind.block, block_bytes=kind.block_bytes,
            block=kind.block, dequantize=kind.dequantize, scale=float_bits(scale), y=out, y_stride=out.stride,
        )  # fmt: skip
        return out

    def gather_outputs(self, x: Value) -> Value:
        """The rows whose logits are wanted."""
        out = self._value("out", x.n_cols, "out")
        self._add(
            "gather", rows.gather, rows.GATHER_FIELDS, [x], [out],
            rows=self.inputs.out_rows.ctypes.data, x=x, x_stride=x.stride, y=out, y_stride=out.stride,
            n_bytes=4 * x.n_cols,
        )  # fmt: skip
        return out

    # -- norms and activations ------------------------------------------------------------------------------------

    def rms_norm(self, x: Value, weight: int, eps: float, *, n_groups: int = 1, into: Value | None = None) -> Value:
        """Normalised rows (or n_groups parts of each row alone); added to `into` where that is given."""
        out = into or self._value("norm", x.n_cols, x.rows)
        self._norm(x, weight, eps, n_groups, out, into is not None)
        return out

    def rms_norm_in_place(self, x: Value, weight: int, eps: float, n_groups: int) -> None:
        """Normalises n_groups parts (heads) of each row where they are."""
        self._norm(x, weight, eps, n_groups, x, False)

    def _norm(self, x: Value, weight: int, eps: float, n_groups: int, out: Value, accumulate: bool) -> None:
        self._add(
            "rms_norm", norm.rms_norm, norm.FIELDS, [x, out] if accumulate else [x], [out],
            x=x, x_stride=x.stride, n_groups=n_groups, n_cols=x.n_cols // n_groups, weight=weight,
            eps=float_bits(eps), y=out, y_stride=out.stride, accumulate=int(accumulate),
        )  # fmt: skip

    def layer_norm(
        self, x: Value, weight: int, bias: int, eps: float, *, n_groups: int = 1, weight_stride: int = 0,
        in_place: bool = False,
    ) -> Value:  # fmt: skip
        """Rows (or n_groups parts of each alone) less their mean, by their deviation. 0 is no weight, no bias.

        weight_stride: bytes from one group's weights to the next's, 0 where they share them.
        """
        out = x if in_place else self._value("norm", x.n_cols, x.rows)
        self._add(
            "layer_norm", norm.layer_norm, norm.LAYER_FIELDS, [x], [out],
            x=x, x_stride=x.stride, n_groups=n_groups, n_cols=x.n_cols // n_groups, weight=weight,
            eps=float_bits(eps), y=out, y_stride=out.stride, bias=bias, weight_stride=weight_stride,
        )  # fmt: skip
        return out

    def activate(self, function: str, gate: Value, up: Value | None = None) -> Value:
        """A function of kernels.activation: of the gate and `up`, or of one value."""
        out = self._value("activated", gate.n_cols, gate.rows)
        self._add(
            function, activation.activate, activation.FIELDS, [gate, up] if up else [gate], [out],
            function=activation.FUNCTIONS[function], gate=gate, up=up or gate, y=out, stride=out.stride,
            n_vectors=out.stride // 64,
        )  # fmt: skip
        return out

    def clamp(self, x: Value, limit: float) -> None:
        """x within -limit .. limit, in place."""
        self._add(
            "clamp", rows.clamp, rows.CLAMP_FIELDS, [x], [x],
            x=x, stride=x.stride, n_cols=x.n_cols, limit=float_bits(limit),
        )  # fmt: skip

    def scale_rows(self, x: Value, factors: int, n: int) -> None:
        """Each row of x times the factor of its position, in place; `factors`: address of float32 [n]."""
        self._add(
            "scale_rows", rows.scale_rows, rows.SCALE_FIELDS, [x], [x],
            positions=self.inputs.positions.ctypes.data, factors=factors, last=n - 1, x=x, stride=x.stride,
            n_vectors=x.stride // 64,
        )  # fmt: skip

    def softcap(self, x: Value, cap: float) -> None:
        """x = cap * tanh(x / cap), in place."""
        self._add(
            "softcap", rows.softcap, rows.SOFTCAP_FIELDS, [x], [x],
            x=x, stride=x.stride, n_vectors=x.stride // 64, cap=float_bits(cap),
        )  # fmt: skip

    # -- products -------------------------------------------------------------------------------------------------

    def _activations(self, x: Value, kind: int) -> Value:
        """x as the matmul of a weight type wants it, made once for all matrices that share it."""
        if (x, kind) in self._quantized:
            return self._quantized[x, kind]
        out = Value(f"{x.name}_{at.NAMES[kind]}", x.n_cols, 0, at.group_bytes(kind, x.n_cols), x.rows)
        self._add(
            "quantize", _QUANTIZE[kind], quantize.FIELDS, [x], [out],
            x=x, x_stride=x.stride, n_cols=x.n_cols, y=out, group_bytes=out.group_bytes,
        )  # fmt: skip
        self._quantized[x, kind] = out
        return out

    def column_squares(self, x: Value, sums: int, counts: int) -> None:
        """Adds the squares of x's columns, and the rows they are of: addresses as kernels.column_squares has them."""
        from llmkit.kernels import column_squares as squares  # compiled for those who collect

        done, slots = Value("squares", 0, 0, rows=x.rows), x.rows if isinstance(x.rows, Slots) else None
        self._add(
            "column_squares", squares.column_squares, squares.FIELDS, [x], [done],
            x=x, x_stride=x.stride, n_cols=x.n_cols, sums=sums, counts=counts, slots=slots or 0,
            n_expert=slots.n_expert if slots else 1,
        )  # fmt: skip

    def matmul(self, x: Value, w: Matrix, *, bias: int = 0, into: Value | None = None) -> Value:
        """W x + bias; added to `into` where that is given."""
        if self.collector:
            self.collector.add_to(self, x, w)
        out = into or self._value(w.name, w.n_rows, x.rows)
        activations = self._activations(x, w.type.activation)
        n_blocks = w.n_cols // w.type.tile_block
        self._add(
            "matmul", mm.matmul, mm.FIELDS, [activations, out] if into else [activations], [out],
            tile=w.type.multiply, w=w, tile_stride=n_blocks * w.type.tile_bytes, n_tiles=w.n_tiles, n_blocks=n_blocks,
            x=activations, group_bytes=activations.group_bytes, y=out, y_stride=out.stride, bias=bias,
            accumulate=int(into is not None),
        )  # fmt: skip
        return out

    def affine(self, x: Value, scale: int, *, before: int = 0, after: int = 0, into: Value | None = None) -> Value:
        """(x + before) * scale + after; added to `into` where that is given. `scale` is the address of one float32."""
        out = into or self._value("affine", x.n_cols, x.rows)
        self._add(
            "affine", rows.affine, rows.AFFINE_FIELDS, [x, out] if into else [x], [out],
            x=x, y=out, stride=x.stride, n_cols=x.n_cols, before=before, scale=scale, after=after,
            accumulate=int(into is not None),
        )  # fmt: skip
        return out

    # -- mixtures of experts --------------------------------------------------------------------------------------

    def route(self, logits: Value, n_used: int, *, softmax: bool, normalise: bool, scale: float) -> Slots:
        """Which n_used experts each row takes by its logits (overwritten), and the slots of all rows."""
        n_expert = logits.n_cols
        picks = Value("picks", 0, -(-experts.PICK * n_used // 64) * 64)
        slots = Slots("slots", 0, 0, fixed=experts.slots_bytes(n_expert), n_expert=n_expert, n_used=n_used, picks=picks)
        slots.tokens = Value("slot_tokens", 0, 8, rows=slots)
        self._add(
            "route", experts.route, experts.ROUTE_FIELDS, [logits], [picks, logits],
            logits=logits, stride=logits.stride, n_expert=n_expert, n_used=n_used, picks=picks,
            picks_stride=picks.stride, softmax=int(softmax), normalise=int(normalise), scale=float_bits(scale),
        )  # fmt: skip
        self._add(
            "sort", experts.sort, experts.SORT_FIELDS, [picks], [slots, slots.tokens, picks],
            picks=picks, picks_stride=picks.stride, n_expert=n_expert, n_used=n_used, slots=slots, rows=slots.tokens,
        )  # fmt: skip
        return slots

    def spread(self, x: Value, slots: Slots) -> Value:
        """Rows of slots: each its token's row of x."""
        assert slots.tokens is not None
        out = self._value("spread", x.n_cols, slots)
        self._add(
            "spread", experts.spread, experts.SPREAD_FIELDS, [x, slots.tokens], [out],
            rows=slots.tokens, x=x, x_stride=x.stride, y=out, y_stride=out.stride, n_bytes=4 * x.n_cols,
        )  # fmt: skip
        return out

    def matmul_experts(self, x: Value, w: Matrix, *, scales: int = 0, biases: int = 0) -> Value:
        """Each slot's row through its expert's part of w, times its scale, plus its bias."""
        slots = x.rows
        assert isinstance(slots, Slots)
        if self.collector:
            self.collector.add_to(self, x, w)
        n_rows = w.n_rows // slots.n_expert
        out, activations = self._value(w.name, n_rows, slots), self._activations(x, w.type.activation)
        n_blocks = w.n_cols // w.type.tile_block
        self._add(
            "matmul_experts", me.matmul_experts, me.FIELDS, [activations], [out],
            tile=w.type.multiply, w=w, tile_stride=n_blocks * w.type.tile_bytes, n_tiles=n_rows // 16,
            n_blocks=n_blocks, x=activations, group_bytes=activations.group_bytes, y=out, y_stride=out.stride,
            scales=scales, biases=biases, slots=slots, n_expert=slots.n_expert,
        )  # fmt: skip
        return out

    def combine(self, x: Value, into: Value | None = None) -> Value:
        """The weighted sum of each token's slots; added to `into` where that is given."""
        slots = x.rows
        assert isinstance(slots, Slots)
        assert slots.picks is not None
        out = into or self._value("combined", x.n_cols)
        self._add(
            "combine", experts.combine, experts.COMBINE_FIELDS, [x, slots.picks] + ([out] if into else []), [out],
            picks=slots.picks, picks_stride=slots.picks.stride, n_used=slots.n_used, x=x, x_stride=x.stride,
            y=out, y_stride=out.stride, n_vectors=x.stride // 64, accumulate=int(into is not None),
        )  # fmt: skip
        return out

    # -- attention ------------------------------------------------------------------------------------------------

    def rope_table(self, frequencies: int, n_rot: int, scale: float = 1.0) -> Value:
        """Cosines and sines of all positions, times `scale`; `frequencies`: address of float64 [n_rot / 2], radians."""
        out = self._value("rope", n_rot)
        out.stride = 4 * n_rot
        self._add(
            "rope_table", rope.rope_table, rope.TABLE_FIELDS, [], [out],
            positions=self.inputs.positions.ctypes.data, frequencies=frequencies, n_rot=n_rot, table=out,
            scale=float_bits(scale),
        )  # fmt: skip
        return out

    def rope_store(self, q: Value, k: Value, v: Value, table: Value | None, layer: int, *, interleaved: bool) -> None:
        """Rotates q in place, and k on its way into the cells, with v; without a table nothing is rotated."""
        kind, kv = self._kind_of(layer)
        reads = [q, k, v] if table is None else [q, k, v, table]
        writes = [q, k, self.kv] if kv.n_rot_v == 0 else [q, k, v, self.kv]
        self._add(
            "rope_store", kv_store.rope_store, kv_store.FIELDS, reads, writes,
            q=q, q_stride=q.stride, k=k, v=v, kv_stride=k.stride, n_head=q.n_cols // kv.head_dim,
            n_rot=table.n_cols if table else 0, interleaved=int(interleaved), table=table or 0,
            blocks=self.inputs.blocks_of(kind), cells=self.inputs.cells_of(kind), n_rot_k=kv.n_rot_k,
            k_store=kv_type(kv.type_k).store_k, v_store=kv_type(kv.type_v).store_v, **self._cells_of(layer),
        )  # fmt: skip

    def kv_shift(self, table: Value, layer: int, *, interleaved: bool) -> None:
        """Turns the keys of each row's cell by the angles of the table."""
        kind, kv = self._kind_of(layer)
        fields = self._cells_of(layer)
        self._add(
            "kv_shift", kv_shift.kv_shift, kv_shift.FIELDS, [table, self.kv], [self.kv],
            table=table, n_rot=table.n_cols, interleaved=int(interleaved), blocks=self.inputs.blocks_of(kind),
            cells=self.inputs.cells_of(kind), k_load=kv_type(kv.type_k).load_k, k_store=kv_type(kv.type_k).store_k,
            n_rot_k=kv.n_rot_k, scratch=SCRATCH, scratch_bytes=kv_shift.scratch_bytes(kv.head_dim),
            **{name: fields[name] for name in ("n_head_kv", "head_dim", "k_offset", "k_head_bytes", "hadamard")},
        )  # fmt: skip

    def mark_shifted(self) -> Value:
        """Writes down that the keys are turned, once they all are; a value that stands for that."""
        done = Value("done", 1, 64)
        self._add(
            "mark", kv_shift.mark, kv_shift.MARK_FIELDS, [self.kv], [done],
            rotated=self.inputs.rotated.ctypes.data, deltas=self.inputs.positions.ctypes.data,
        )  # fmt: skip
        return done

    def _kind_of(self, layer: int) -> tuple[int, KvLayout]:
        """The number and the layout of the kind of memory that has this layer."""
        kind, _ = self.memory.place(layer)
        return kind, self.memory.kinds[kind].layout

    def _cells_of(self, layer: int) -> dict[str, int]:
        """Where the layer's K and V lie in a block, for the kernels that read and write them."""
        kind, layer = self.memory.place(layer)
        kv = self.memory.kinds[kind].layout
        return dict(
            n_head_kv=kv.n_head_kv, head_dim=kv.head_dim, v_dim=kv.v_dim,
            k_offset=kv.k_offset(layer), v_offset=kv.v_offset(layer), k_head_bytes=kv.k_head_bytes,
            v_head_bytes=kv.v_head_bytes, n_rot_v=kv.n_rot_v,
            hadamard=hadamard_address() if kv.n_rot_k or kv.n_rot_v else 0,
        )  # fmt: skip

    def attention(
        self, q: Value, layer: int, *, scale: float, window: int = 0, softcap: float = 0.0, slopes: int = 0,
        sinks: int = 0,
    ) -> Value:  # fmt: skip
        """softmax(scale * q k^T) v over the cells of each row's own sequence up to itself (`window` positions back).

        slopes, sinks: addresses as kernels.attention_scores has them, 0 for none.
        """
        (kind, kv), inputs = self._kind_of(layer), self.inputs
        n_head = q.n_cols // kv.head_dim
        queries = max_queries(n_head, kv.n_head_kv, kv.head_dim)
        out = self._value("attn", q.n_cols)
        args: dict[str, Any] = dict(
            q=q, q_stride=q.stride, y=out, y_stride=out.stride, n_head=n_head, scale=float_bits(scale),
            first_visible=inputs.first_visible_of(window) if window else 0, kind=kind,
            k_load=kv_type(kv.type_k).load_k, v_load=kv_type(kv.type_v).load_v, **self._cells_of(layer),
            units=inputs.units_address, unit_count=inputs.n_units_address, block_addresses=self.block_addresses[kind],
            scratch=SCRATCH, scratch_bytes=attention.scratch_bytes(queries, kv.head_dim, kv.v_dim),
            max_queries=queries, partials=inputs.partials_address, cap=float_bits(softcap), slopes=slopes, sinks=sinks,
            row_ends=inputs.row_ends.ctypes.data, row_positions=inputs.positions.ctypes.data,
            row_partials=inputs.row_partials.ctypes.data, row_done=inputs.row_done_address,
        )  # fmt: skip
        self._add("attention", attention.attention, attention.FIELDS, [q, self.kv], [out], **args)
        return out


# The threads' scratch memory, one for all operations.
SCRATCH = Value("scratch", 0, 0)


def max_queries(n_head: int, n_head_kv: int, head_dim: int) -> int:
    """Query rows (tokens times heads of a group) that a unit of attention takes: their outputs stay in cache."""
    heads = n_head // n_head_kv
    tokens = max(1, min(32, 8192 // (heads * head_dim)))
    return -(-tokens * heads // 4) * 4
