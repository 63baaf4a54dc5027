"""The memory of sequences, the slow way: each has plain arrays of its own, with copies of the rows of K and V.

Nothing is shared, nothing is dropped; an operation is a line of NumPy. Logits come from a context that keeps all
tokens: the rows are put into the cells of a sequence made for one call and freed after it. Knows of the engine only
where a cell's bytes lie, which it finds by writing them (tests.reference.kv).
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmkit.engine.batch import Segment
from llmkit.memory.chain import CELL, POS, ROTATED, TOKEN
from tests import reference as ref
from tests.reference import kv

Array = NDArray[Any]
CELLS = 32


def cell_bytes(name: str, n_dims: int, is_k: bool) -> Array:
    """Which bytes of one head of a block are of cell 0 .. 31: bool [32][bytes]."""
    out = []
    for cell in range(CELLS):
        heads = [np.full(kv.head_bytes(name, n_dims), fill, np.uint8) for fill in (0, 255)]
        for head in heads:
            kv.put(head, name, is_k, cell, np.linspace(-1, 1, n_dims))
        out.append(heads[0] == heads[1])
    return np.array(out)


@dataclass(frozen=True)
class Private:
    """A sequence: columns of equal length. k, v: bytes of each token's rows, [n][layer * head][bytes], as first stored.

    turned: what has been added to the position that K is rotated for. story: what was computed before each token.
    passed: whether a later token has left it behind the window.
    """

    tokens: Array
    pos: Array
    k: Array
    v: Array
    turned: Array
    story: Array
    passed: Array
    shifted: bool = False

    def take(self, which: Array) -> "Private":
        """The tokens with these numbers, in their order."""
        columns = {name: getattr(self, name)[which] for name in COLUMNS}
        return replace(self, **columns)

    def join(self, other: "Private") -> "Private":
        """Both, in the order of positions; equal ones in the order in which they stand."""
        columns = {name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in COLUMNS}
        both = replace(self, **columns, shifted=self.shifted or other.shifted)
        return both.take(np.argsort(both.pos, kind="stable"))

    def inside(self, p0: int, p1: int) -> Array:
        """Which tokens lie in [p0, p1)."""
        return (self.pos >= p0) & ((self.pos < p1) if p1 >= 0 else True)


COLUMNS = ("tokens", "pos", "k", "v", "turned", "story", "passed")


@dataclass
class Twin:
    """Private sequences by id. ctx: a context with room for one of them, all of whose layers keep all tokens."""

    ctx: Any
    window: int
    frequencies: dict[bool, Array]
    interleaved: bool
    sequences: dict[int, Private] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kind = self.ctx.kv.kinds[0]
        self.layout, self.is_window = kind.layout, [w > 0 for w in self.ctx.model.config.windows]
        self.k_mask = cell_bytes(self.layout.type_k, self.layout.head_dim, is_k=True)
        self.v_mask = cell_bytes(self.layout.type_v, self.layout.v_dim, is_k=False)

    def get(self, seq_id: int) -> Private:
        """What a sequence holds; nothing, if it was never used."""
        n = self.layout.n_layer * self.layout.n_head_kv
        k, v = (np.zeros((0, n, int(mask[0].sum())), np.uint8) for mask in (self.k_mask, self.v_mask))
        none = np.zeros(0, np.int64)
        return self.sequences.get(seq_id, Private(none, none, k, v, none, none, none.astype(bool)))

    # -- operations -----------------------------------------------------------------------------------------------

    def rm(self, seq_id: int, p0: int, p1: int) -> dict[int, Private]:
        """What each sequence would be; nothing is changed yet, here and in what follows."""
        ids = list(self.sequences) if seq_id == -1 else [seq_id]
        return {i: self.get(i).take(np.flatnonzero(~self.get(i).inside(p0, p1))) for i in ids}

    def cp(self, src: int, dst: int, p0: int, p1: int) -> dict[int, Private]:
        if src == dst:
            return {}
        source, target = self.get(src), self.get(dst)
        rest = target.take(np.flatnonzero(~target.inside(p0, p1)))
        if not rest.tokens.size:
            rest = replace(rest, shifted=False)
        return {dst: rest.join(source.take(np.flatnonzero(source.inside(p0, p1))))}

    def keep(self, seq_id: int) -> dict[int, Private]:
        return {i: s.take(np.zeros(0, np.int64)) for i, s in self.sequences.items() if i != seq_id}

    def move(self, seq_id: int, p0: int, p1: int, pos: Array) -> dict[int, Private]:
        """`pos`: the new positions of all tokens, of which those in [p0, p1) count."""
        seq = self.get(seq_id)
        inside = seq.inside(p0, p1)
        pos = np.where(inside, pos, seq.pos)
        moved = replace(
            seq, pos=pos, turned=seq.turned + pos - seq.pos, shifted=seq.shifted or bool((pos != seq.pos).any())
        )
        moved = moved.take(np.flatnonzero(pos >= 0))
        return {seq_id: moved.take(np.argsort(moved.pos, kind="stable"))}

    def lacks(self, seq: Private) -> bool:
        """Whether a token would be seen next that a window may have dropped."""
        if not self.window or not seq.pos.size:
            return False
        return bool(seq.passed[seq.pos > seq.pos[-1] + 1 - self.window].any())

    # -- logits ---------------------------------------------------------------------------------------------------

    def decode(self, seq_id: int, tokens: list[int]) -> Array:
        """All logits of new tokens, which then belong to the sequence."""
        seq, engine = self.get(seq_id), self.ctx.new_sequence()
        n = seq.tokens.size
        if n:
            self.ctx.kv.append(engine, seq.tokens.astype(np.int32))
            rows = engine.chain.rows(0, n)
            rows[POS] = rows[ROTATED] = seq.pos
            self._put(rows[CELL], self._keys(seq), seq.v)
        out = np.array(self.ctx.decode([Segment(engine, tokens, "all")]))
        made = np.array(engine.chain.rows(n, n + len(tokens)))
        k, v = self._take(made[CELL])
        begun = _story(seq.tokens, seq.pos)
        story = _story(made[TOKEN], made[POS], int(begun[-1]) if n else 0)
        if not np.array_equal(begun, seq.story):
            story = np.full(len(tokens), -1)
        zero = np.zeros(len(tokens), np.int64)
        joined = seq.join(Private(made[TOKEN], made[POS], k, v, zero, story, zero.astype(bool)))
        if self.window:
            joined = replace(joined, passed=joined.passed | (joined.pos <= joined.pos[-1] + 1 - self.window))
        self.sequences[seq_id] = joined
        self.ctx.free_sequence(engine)
        return out

    def is_whole(self, seq_id: int) -> bool:
        """Whether a fresh sequence would have the same rows: nothing before any token was removed since it came."""
        seq = self.get(seq_id)
        return np.array_equal(seq.story, _story(seq.tokens, seq.pos)) and np.array_equal(
            seq.pos, np.arange(seq.pos.size)
        )

    # -- rows and cells -------------------------------------------------------------------------------------------

    def _heads(self, cell: int) -> tuple[list[Array], list[Array]]:
        """Views of K and of V of every layer's heads in a cell's block."""
        layout, pool = self.layout, self.ctx.kv.pool
        block = pool.data[cell // CELLS * pool.block_bytes :][: pool.block_bytes]
        k = [
            block[layout.k_offset(i) + h * layout.k_head_bytes :][: layout.k_head_bytes]
            for i in range(layout.n_layer)
            for h in range(layout.n_head_kv)
        ]
        v = [
            block[layout.v_offset(i) + h * layout.v_head_bytes :][: layout.v_head_bytes]
            for i in range(layout.n_layer)
            for h in range(layout.n_head_kv)
        ]
        return k, v

    def _put(self, cells: Array, k: Array, v: Array) -> None:
        for cell, k_rows, v_rows in zip(cells, k, v, strict=True):
            for heads, rows, mask in zip(self._heads(cell), (k_rows, v_rows), (self.k_mask, self.v_mask), strict=True):
                for head, row in zip(heads, rows, strict=True):
                    head[mask[cell % CELLS]] = row

    def _take(self, cells: Array) -> tuple[Array, Array]:
        k, v = [], []
        for cell in cells:
            k_heads, v_heads = self._heads(cell)
            k.append([head[self.k_mask[cell % CELLS]] for head in k_heads])
            v.append([head[self.v_mask[cell % CELLS]] for head in v_heads])
        return np.array(k), np.array(v)

    def _keys(self, seq: Private) -> Array:
        """The bytes of K, turned to the positions that the tokens have now."""
        out = seq.k.copy()
        for i in np.flatnonzero(seq.turned):
            for row in range(out.shape[1]):
                out[i, row] = self._turned(
                    seq.k[i, row], int(seq.turned[i]), self.is_window[row // self.layout.n_head_kv]
                )
        return out

    def _turned(self, row: Array, delta: int, window: bool) -> Array:
        name, n_dims, n_rot = self.layout.type_k, self.layout.head_dim, self.layout.n_rot_k
        head = np.zeros(self.layout.k_head_bytes, np.uint8)
        head[self.k_mask[0]] = row
        x = kv.get(head, name, 0, n_dims)
        x = kv.hadamard(x, n_rot) if n_rot else x
        angles = delta * self.frequencies[window][None, :]
        x = ref.rope(x[None, None, :].astype(np.float64), np.cos(angles), np.sin(angles), neox=not self.interleaved)[
            0, 0
        ]
        x = x.astype(np.float32)
        kv.put(head, name, True, 0, kv.hadamard(x, n_rot) if n_rot else x)
        return head[self.k_mask[0]]


def _story(tokens: Array, pos: Array, begun: int = 0) -> Array:
    """For each token a number for itself and all before it."""
    out = []
    for token, at in zip(tokens, pos, strict=True):
        begun = hash((begun, int(token), int(at)))
        out.append(begun)
    return np.array(out, np.int64)
