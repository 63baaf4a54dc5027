"""Attention over blocks against its twin, and equal bits: one query or many, whole blocks or scattered cells, spans
taken together or one by one. What no query may read is NaN.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytest
from numpy.typing import NDArray

from tests import reference as ref
from tests.kernels.harness import Floats, address, aligned, float_bits, run
from tests.reference import kv

attention = pytest.importorskip("llmkit.kernels.attention")
registry = pytest.importorskip("llmkit.kernels.kv_types.registry")

CELLS, SPAN = 32, 256
Run = tuple[int, int] | list[int]  # tokens first .. last, or these


@dataclass(frozen=True)
class Case:
    """Shapes of one layer's attention, and the sequence of `n` tokens whose K and V are given."""

    n: int
    n_head: int = 4
    n_head_kv: int = 2
    head_dim: int = 16
    window: int = 0
    kv: str = "f32"
    cap: float = 0.0
    alibi: bool = False
    sinks: bool = False
    gaps: bool = False

    @cached_property
    def positions(self) -> NDArray[np.int64]:
        """One after the other; with gaps some are left out."""
        if not self.gaps:
            return np.arange(self.n)
        return np.cumsum(np.random.default_rng(3).integers(1, 4, self.n)).astype(np.int64)

    @property
    def slopes(self) -> Floats | None:
        return (2.0 ** -(1.0 + np.arange(self.n_head))).astype(np.float32) if self.alibi else None

    @property
    def sink_scores(self) -> Floats | None:
        return np.linspace(-2, 5, self.n_head).astype(np.float32) if self.sinks else None

    @property
    def v_dim(self) -> int:
        return -(-self.head_dim // 16) * 16

    @property
    def n_rot_v(self) -> int:
        """With quantised values the outputs are transformed back, as if the values had been transformed."""
        return 64 if self.kv in kv.QUANTISED and self.head_dim % 64 == 0 else 0

    def values(self) -> tuple[Floats, Floats, Floats]:
        """q, k, v of every position; k and v are what the cache's type holds."""
        rng = np.random.default_rng(self.n)
        shapes = [(self.n, heads, self.head_dim) for heads in (self.n_head, self.n_head_kv, self.n_head_kv)]
        q, k, v = (rng.normal(size=shape).astype(np.float32) for shape in shapes)
        return aligned(q), kv.rounded(self.kv, k), kv.rounded(self.kv, v)


class Cache:
    """K and V in blocks whose other cells are NaN. `scatter` puts every cell at a random place; "runs": few cells in a
    row, as removing from a sequence leaves them."""

    def __init__(self, case: Case, k: Floats, v: Floats, scatter: bool | str) -> None:
        self.case, n_blocks = case, -(-case.n // CELLS) + 3
        self.k_bytes, self.v_bytes = kv.head_bytes(case.kv, case.head_dim), kv.head_bytes(case.kv, case.v_dim)
        self.v_offset = case.n_head_kv * self.k_bytes
        self.blocks = aligned(np.full((n_blocks, self.v_offset + case.n_head_kv * self.v_bytes), 255, np.uint8))
        rng = np.random.default_rng(1)
        if scatter == "runs":
            self.cells = np.delete(np.arange(n_blocks * CELLS), [3, 40, 41, 90])[: case.n]
        elif scatter:
            self.cells = rng.permutation(n_blocks * CELLS)[: case.n]
        else:
            self.cells = (rng.permutation(n_blocks)[:, None] * CELLS + np.arange(CELLS)).reshape(-1)[: case.n]
        self.cells = self.cells.astype(np.int64)
        padded = np.zeros((case.n_head_kv, case.v_dim), np.float32)  # zeros fill the columns beyond head_dim
        for pos, cell in enumerate(self.cells):
            block = self.blocks[cell // CELLS]
            padded[:, : case.head_dim] = v[pos]
            for head in range(case.n_head_kv):
                k_head = block[head * self.k_bytes :][: self.k_bytes]
                v_head = block[self.v_offset + head * self.v_bytes :][: self.v_bytes]
                kv.put(k_head, case.kv, True, cell % CELLS, k[pos, head])
                kv.put(v_head, case.kv, False, cell % CELLS, padded[head])
        self.addresses = np.array([address(block) for block in self.blocks], np.int64)

    def attend(self, q: Floats, runs: list[Run], by_span: bool = False, cuts: tuple[int, ...] = ()) -> Floats:
        """Rows of q at the tokens of each run, a unit a run, or a unit a run and span. Tiles are met in steps that end
        at `cuts`, after each of which the run's two halves go on apart."""
        case, places = self.case, [list(range(*run)) if isinstance(run, tuple) else run for run in runs]
        tokens = np.concatenate([np.array(place) for place in places])
        ends, numbers = tokens + 1, np.arange(tokens.size)
        n_spans = -(-ends // SPAN)
        steps, units = [], []
        for i, place in enumerate(places):
            first = sum(len(p) for p in places[:i])
            spans = range(max(n_spans[first : first + len(place)])) if by_span else [-1]
            for span in spans:
                made = self.steps(first, ends[first : first + len(place)], span, cuts)
                units.append([len(steps), len(made), first, len(place), span])
                steps += [[row, n, row - first, *tiles, address(case.positions), 0, address(self.cells)]
                          for row, n, *tiles in made]  # fmt: skip
        table, step_table = np.array(units, np.int64), np.array(steps, np.int64)
        step_table[:, 0] = address(numbers) + 8 * step_table[:, 0]
        table[:, 0] = address(step_table) + 8 * attention.STEP * table[:, 0]
        table[:, 2] = address(numbers) + 8 * table[:, 2]
        assert table.shape[1] == attention.UNIT == len(attention.UNIT_FIELDS)
        assert step_table.shape[1] == attention.STEP == len(attention.STEP_FIELDS)
        max_queries = -(-max(unit[3] for unit in units) * (case.n_head // case.n_head_kv) // 4) * 4
        scratch_bytes = attention.scratch_bytes(max_queries, case.head_dim, case.v_dim)
        rows, positions = aligned(q[tokens]), case.positions[tokens]
        y = aligned(np.full_like(rows, np.nan))
        first_visible = np.searchsorted(case.positions, positions - case.window, "right") if case.window else 0
        partials = aligned(np.full((int(n_spans.sum()), case.n_head, 2 + case.v_dim), np.nan, np.float32))
        done = np.zeros((tokens.size, case.n_head_kv), np.int64)
        block = {
            "q": rows, "q_stride": rows.strides[0], "y": y, "y_stride": y.strides[0], "n_head": case.n_head,
            "n_head_kv": case.n_head_kv, "head_dim": case.head_dim, "v_dim": case.v_dim,
            "scale": float_bits(case.head_dim**-0.5), "first_visible": first_visible, "kind": 1,
            "k_offset": 0, "v_offset": self.v_offset,
            "k_load": registry.kv_type(case.kv).load_k, "v_load": registry.kv_type(case.kv).load_v,
            "k_head_bytes": self.k_bytes, "v_head_bytes": self.v_bytes, "n_rot_v": case.n_rot_v,
            "hadamard": registry.hadamard_address() if case.n_rot_v else 0,
            "units": np.array([address(table)], np.int64), "unit_count": np.array([len(units)], np.int64),
            "block_addresses": self.addresses,
            "scratch": aligned(np.full(scratch_bytes // 4, np.nan, np.float32)), "scratch_bytes": scratch_bytes,
            "max_queries": max_queries, "partials": np.array([address(partials)], np.int64), "row_ends": ends,
            "row_positions": positions, "row_partials": np.cumsum(n_spans) - n_spans,
            "row_done": np.array([address(done)], np.int64),
        }  # fmt: skip
        slopes = 0 if case.slopes is None else case.slopes
        sinks = 0 if case.sink_scores is None else case.sink_scores
        block |= {"cap": float_bits(case.cap), "slopes": slopes, "sinks": sinks}
        run(attention.attention, attention.FIELDS, tokens.size, **block)
        assert not done.any()  # the last span of each row has merged them all and left the count at zero
        return y.copy()

    def steps(self, row: int, ends: NDArray[np.int64], span: int, cuts: tuple[int, ...]) -> list[list[int]]:
        """(row, rows, first tile, last tile, closes) of rows with these ends, in all spans or one."""
        last = -(-int(ends.max()) // CELLS)
        low, high = (0, last) if span < 0 else (8 * span, min(8 * span + 8, last))
        inside = sorted(cut for cut in cuts if low < cut < high)
        if not inside:
            return [[row, ends.size, low, high, 1]]
        out, start = [], low
        parts = [(row, ends)]
        for cut in [*inside, high]:
            for first, some in parts:
                out.append([first, some.size, start, cut, int(cut == high or cut % 8 == 0)])
            first, some = parts[-1]
            if some.size > 1:
                parts[-1:] = [(first, some[: some.size // 2]), (first + some.size // 2, some[some.size // 2 :])]
            start = cut
        return out


def bits(values: Floats) -> NDArray[np.uint32]:
    assert np.isfinite(values).all()
    return values.view(np.uint32)


CASES = [
    Case(1),
    Case(33),
    Case(70, n_head=9, n_head_kv=3, head_dim=64),
    Case(70, n_head=5, n_head_kv=1, head_dim=40),
    Case(300, kv="f16"),
    Case(600, window=64),
    Case(600, window=100, kv="f16", n_head_kv=1),
    Case(520, window=512, head_dim=32),
    Case(300, cap=2.0),
    Case(300, alibi=True, n_head=6, n_head_kv=3),
    Case(600, sinks=True, window=64),
    Case(300, window=64, gaps=True),
    Case(300, alibi=True, gaps=True),
    Case(300, cap=3.0, alibi=True, sinks=True, n_head=5, n_head_kv=1, kv="f16"),
    Case(70, head_dim=40, kv="bf16"),
    *(Case(70, n_head=3, n_head_kv=1, head_dim=size, kv=name) for name in kv.QUANTISED for size in (32, 64)),
    Case(300, n_head=3, n_head_kv=1, head_dim=96, window=64, kv="q5_1"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("scatter", [False, True, "runs"])
def test_against_the_twin(case: Case, scatter: bool | str) -> None:
    q, k, v = case.values()
    pos = case.positions
    exact = [t.astype(np.float64) for t in (q, k, v)]
    want = ref.attention(
        exact[0], exact[1], exact[2], case.head_dim**-0.5, pos, pos, case.window, case.cap, case.slopes,
        case.sink_scores,
    )  # fmt: skip
    if case.n_rot_v:
        want = kv.hadamard(want, case.n_rot_v)
    runs = [(first, min(first + 16, case.n)) for first in range(0, case.n, 16)]
    got = Cache(case, k, v, scatter).attend(q, runs)
    np.testing.assert_allclose(got, want, atol=3e-6)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_way_gives_equal_bits(case: Case) -> None:
    q, k, v = case.values()
    whole, scattered = Cache(case, k, v, scatter=False), Cache(case, k, v, scatter=True)
    alone = [(pos, pos + 1) for pos in range(case.n)]
    want = bits(whole.attend(q, alone))
    for n in (2, 7, 16):
        runs = [(first, min(first + n, case.n)) for first in range(0, case.n, n)]
        np.testing.assert_array_equal(bits(whole.attend(q, runs)), want)
        np.testing.assert_array_equal(bits(scattered.attend(q, runs)), want)
        np.testing.assert_array_equal(bits(whole.attend(q, runs, by_span=True)), want)
    np.testing.assert_array_equal(bits(scattered.attend(q, alone, by_span=True)), want)


@pytest.mark.parametrize("case", [case for case in CASES if case.n > 256], ids=str)
@pytest.mark.parametrize("by_span", [False, True])
def test_rows_that_go_apart_in_the_middle_of_a_span(case: Case, by_span: bool) -> None:
    """Any rows together, of which fewer and fewer go on together: in a span, at its end, behind it."""
    q, k, v = case.values()
    cache, rng = Cache(case, k, v, scatter=False), np.random.default_rng(2)
    want = bits(cache.attend(q, [(pos, pos + 1) for pos in range(case.n)]))
    tokens = [case.n - 1, 0, *(int(i) for i in rng.permutation(np.arange(1, case.n - 1))[:31])]
    runs: list[Run] = [tokens[:13], tokens[13:14], tokens[14:]]
    for cuts in ((2, 3, 8, 9), (8,), (1, 4, 5, 6, 7, 10, 15)):
        np.testing.assert_array_equal(bits(cache.attend(q, runs, by_span, cuts)), want[tokens])
