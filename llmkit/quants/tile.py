"""A matmul tile: 16 rows of weights, one lane each, against 1, 4 or 8 tokens.

A lane adds up its own row's products block after block, in one order, whatever the number of tokens: one token and
many give equal bits. A format says how one block of a tile is laid out and multiplied; this file makes the loop.

Code layout shared by all integer formats, for 32 columns of 16 rows: byte 4r+j of group g is column 4g+j of row r.
4-bit codes hold group g in the low and group g+4 in the high half of the same 64 bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import types

from llmkit.kernels.activation_tile import BLOCK, BLOCK_BYTES, GROUP
from llmkit.simd import emitter as em
from llmkit.simd.loop import emit_loop
from llmkit.simd.vector import operation

Value = Any
i64 = types.int64
N_ROWS = 16


class TileFormat:
    """How 16 rows x `block` columns of one type are stored and multiplied."""

    block: int  # columns: one or more blocks of the activations
    tile_bytes: int  # bytes of 16 rows x block
    activation: int  # kind of activation_tile

    def emit_block(self, e: em.Emitter, w: Value, x: Value, lanes: range, acc: list[Value]) -> list[Value]:
        """Adds one block's products to `acc`, an f32x16 for each token lane; weights at `w`, activations at `x`."""
        raise NotImplementedError


# -- unpacking codes ----------------------------------------------------------------------------------------------


def nibble_codes(e: em.Emitter, w: Value, group: int) -> Value:
    """Group 0..7 of 4-bit codes stored in 256 bytes at `w`."""
    packed = e.load(em.I8X64, w, 64 * (group % 4))
    return e.and_bytes(packed if group < 4 else e.shift_bytes(packed, -4), 15)


def with_high_bits(e: em.Emitter, codes: Value, plane: Value, shift: int, n_bits: int) -> Value:
    """Adds bits 4.. of each code, which stand at bit `shift` of the bytes of `plane`."""
    high = e.and_bytes(e.shift_bytes(plane, 4 - shift), ((1 << n_bits) - 1) << 4)
    return e.b.or_(codes, high)


def dot_groups(
    e: em.Emitter,
    codes: Callable[[int], Value],
    groups: range,
    x: Value,
    lanes: range,
    acc: list[Value],
    small: bool = True,
) -> list[Value]:
    """int32 sums of code * activation over the groups, for each token."""
    for group in groups:
        code = codes(group)
        at = [e.load_bytes4(x, 32 * lane + 4 * group) for lane in lanes]
        acc = [e.dot_bytes(a, code, bytes4, small) for a, bytes4 in zip(acc, at, strict=True)]
    return acc


def zeros(e: em.Emitter, n: int) -> list[Value]:
    return [e.const(em.I32X16, 0)] * n


# -- tiles -----------------------------------------------------------------------------------------------------------


def _emit_rows(e: em.Emitter, fmt: TileFormat, lanes: range, args: tuple[Value, ...]) -> None:
    """One tile for the token lanes `lanes` of a group: the loop over blocks, then bias, residual and store."""
    w, x, y, y_stride, n_blocks, bias, accumulate = args
    b, x_block = e.b, fmt.block // BLOCK[fmt.activation] * BLOCK_BYTES[fmt.activation]

    def body(i: Value, acc: list[Value]) -> list[Value]:
        w_block = b.add(w, b.mul(i, em.I64(fmt.tile_bytes)))
        return fmt.emit_block(e, w_block, b.add(x, b.mul(i, em.I64(x_block))), lanes, acc)

    sums = emit_loop(b, n_blocks, [e.const(em.F32X16, 0.0) for _ in lanes], body)
    biased = b.icmp_signed("!=", bias, em.I64(0))
    adding = b.icmp_signed("!=", accumulate, em.I64(0))
    for lane, total in zip(lanes, sums, strict=True):
        target = b.add(y, b.mul(y_stride, em.I64(lane)))
        total = _add_if(e, biased, total, bias)
        e.store(_add_if(e, adding, total, target), target)


def _add_if(e: em.Emitter, condition: Value, value: Value, address: Value) -> Value:
    """value + memory at `address` where the condition holds."""
    b, before = e.b, e.b.block
    with b.if_then(condition):
        added = b.fadd(value, e.load(em.F32X16, address))
        inside = b.block
    out = b.phi(value.type)
    out.add_incoming(value, before)
    out.add_incoming(added, inside)
    return out


def _emit_tokens(e: em.Emitter, fmt: TileFormat, n_tokens: int, args: tuple[Value, ...]) -> None:
    for first in range(0, n_tokens, e.n_tokens_wide):
        _emit_rows(e, fmt, range(first, min(first + e.n_tokens_wide, n_tokens)), args)


def tile_operation(fmt: TileFormat) -> Any:
    """The format's multiplication: `(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens)`.

    w: `n_blocks` >= 1 blocks of 16 rows. x: a group's activations. y: float32 rows `y_stride` bytes apart, one a token,
    of which 16 columns are written; with 2 or 3 tokens 4 rows are written, with 5 to 7 all 8. bias: address of 16
    float32 or 0. accumulate: not 0 adds to what y holds.
    """

    @operation(types.void, *[i64] * 8)
    def multiply(e: em.Emitter, *values: Value) -> None:
        args, n_tokens = values[:7], values[7]
        with e.b.if_else(e.b.icmp_signed("==", n_tokens, em.I64(1))) as (one, more):
            with one:
                _emit_tokens(e, fmt, 1, args)
            with more, e.b.if_else(e.b.icmp_signed("<=", n_tokens, em.I64(4))) as (few, many):
                with few:
                    _emit_tokens(e, fmt, 4, args)
                with many:
                    _emit_tokens(e, fmt, GROUP, args)

    return multiply
