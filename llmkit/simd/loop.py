"""Loops whose state stays in registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from llmkit.simd.emitter import I64

Value = Any


def emit_loop(
    b: ir.IRBuilder, n: Value, start: list[Value], body: Callable[[Value, list[Value]], list[Value]]
) -> list[Value]:
    """`for i in range(n): state = body(i, state)` with the state in registers; n >= 1 (an int64)."""
    before, loop = b.block, b.append_basic_block("loop")
    after = b.append_basic_block("after")
    b.branch(loop)
    b.position_at_end(loop)
    index = b.phi(I64)
    state = [b.phi(value.type) for value in start]
    index.add_incoming(I64(0), before)
    for phi, value in zip(state, start, strict=True):
        phi.add_incoming(value, before)
    out = body(index, list(state))
    following = b.add(index, I64(1))
    index.add_incoming(following, b.block)
    for phi, value in zip(state, out, strict=True):
        phi.add_incoming(value, b.block)
    b.cbranch(b.icmp_signed("<", following, n), loop, after)
    b.position_at_end(after)
    return out
