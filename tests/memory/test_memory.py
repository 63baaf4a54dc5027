"""The operations by sequence id, without a model: edge cases, sharing, what is counted, what a full pool leaves."""

from typing import Any

import numpy as np
import pytest

from llmkit.errors import ContextFullError, RewindError, UnsupportedError, UsageError
from llmkit.memory.block_pool import BLOCK_CELLS, BlockPool
from llmkit.memory.kinds import memory_layout
from llmkit.memory.kv_cache import KvCache
from llmkit.memory.kv_layout import KvLayout
from llmkit.memory.memory import Memory
from llmkit.memory.sliding_window import drop_kept, slide


class Fixture:
    """A cache whose tokens are appended by hand; one layer, and one with a window where that is given."""

    def __init__(self, n_ctx: int = 640, window: int = 0, can_shift: bool = True) -> None:
        layout = memory_layout((0, window), KvLayout(2, 1, 16, "f16", "f16"), n_ctx, swa_full=window == 0)
        self.kv = KvCache(layout, n_ctx)
        self.memory = Memory(self.kv, None, can_shift=can_shift)

    def append(self, seq_id: int, n: int) -> None:
        """Tokens that are their own positions."""
        seq = self.memory.sequence(seq_id)
        first, before = seq.chain.pos_max + 1, seq.chain
        self.kv.check_room({seq: n})
        self.kv.append(seq, np.arange(first, first + n, dtype=np.int32))
        slide(self.kv, seq, before)
        drop_kept(self.kv)

    def positions(self, seq_id: int) -> list[int]:
        return [int(p) for p in self.memory.sequence(seq_id).positions]

    def references(self) -> list[list[int]]:
        """By kind and block, and counted anew."""
        counted = []
        for k, pool in enumerate(self.kv.pools):
            refs = [0] * pool.n_blocks
            for seq in self.kv.sequences:
                for block in seq.chain.blocks(k):
                    refs[int(block)] += 1
            assert [pool.n_refs(block) for block in range(pool.n_blocks)] == refs
            counted.append(refs)
        return counted

    def state(self) -> Any:
        ids = range(4)
        return (
            self.references(),
            [self.positions(i) for i in ids],
            [self.memory.sequence(i).cells.tolist() for i in ids],
        )


def span(first: int, last: int) -> list[int]:
    return list(range(first, last))


@pytest.mark.parametrize(
    ("p0", "p1", "left"),
    [
        (-1, -1, []),
        (0, -1, []),
        (-7, 3, span(3, 10)),
        (4, -1, span(0, 4)),
        (4, 6, [0, 1, 2, 3, 6, 7, 8, 9]),
        (6, 4, span(0, 10)),
        (5, 5, span(0, 10)),
        (10, 99, span(0, 10)),
        (9, 99, span(0, 9)),
        (0, 0, span(0, 10)),
    ],
)
def test_rm_and_its_open_ends(p0: int, p1: int, left: list[int]) -> None:
    f = Fixture()
    f.append(0, 10)
    f.append(1, 10)
    assert f.memory.seq_rm(0, p0, p1)
    assert (f.positions(0), f.positions(1)) == (left, span(0, 10))
    assert f.memory.seq_rm(-1, p0, p1)
    assert (f.positions(0), f.positions(1)) == (left, left)
    assert (f.memory.seq_pos_min(1), f.memory.seq_pos_max(1)) == ((left[0], left[-1]) if left else (-1, -1))
    f.references()


def test_sequences_that_do_not_exist() -> None:
    memory = Fixture().memory
    assert memory.seq_rm(77)
    assert (memory.seq_pos_min(77), memory.seq_pos_max(77)) == (-1, -1)
    memory.seq_cp(5, 6)
    memory.seq_keep(9)
    memory.seq_add(3, 0, -1, 4)
    for wrong in (lambda: memory.seq_rm(-2), lambda: memory.seq_cp(-1, 0), lambda: memory.seq_cp(0, -1),
                  lambda: memory.seq_keep(-1), lambda: memory.sequence(-3), lambda: memory.seq_pos_max(-1),
                  lambda: memory.seq_add(-1, 0, 1, 1), lambda: memory.seq_div(0, 0, 1, 0),
                  lambda: memory.seq_add(0, 0, 1, 1 << 70)):  # fmt: skip
        with pytest.raises(UsageError):
            wrong()


def test_a_sequence_freed_by_its_handle_begins_anew() -> None:
    f = Fixture()
    f.append(0, 40)
    f.kv.free(f.memory.sequence(0))
    assert (f.memory.seq_pos_max(0), f.kv.pool.n_used) == (-1, 0)
    f.append(0, 3)
    assert f.positions(0) == [0, 1, 2]


def test_a_copy_takes_no_memory_and_replaces_the_range() -> None:
    f = Fixture()
    f.append(0, 100)
    f.append(1, 50)
    used = f.kv.pool.n_used
    f.memory.seq_cp(0, 1, 40, 60)
    assert f.positions(1) == span(0, 60)
    assert f.memory.sequence(1).cells[40:].tolist() == f.memory.sequence(0).cells[40:60].tolist()
    f.memory.seq_cp(0, 2, 30, 90)
    assert f.positions(2) == span(30, 90)
    f.memory.seq_cp(0, 0, 10, 20)
    assert f.positions(0) == span(0, 100)
    f.memory.seq_cp(1, 0)
    assert f.positions(0) == span(0, 60)
    assert f.kv.pool.n_used <= used
    f.references()


def test_ten_thousand_sequences_share_what_they_have_in_common() -> None:
    f = Fixture(n_ctx=1024)
    f.append(0, 1000)
    for i in range(1, 10_000):
        f.memory.seq_cp(0, i)
    chains = [f.memory.sequence(i).chain for i in range(10_000)]
    assert f.kv.pool.n_used == 32
    assert len({id(part.run) for chain in chains for part in chain.parts}) == 1
    assert len({id(chain.blocks(0)) for chain in chains}) == 1
    f.memory.seq_keep(5000)
    assert f.positions(5000) == span(0, 1000)
    assert (f.kv.pool.n_used, f.positions(4999)) == (32, [])


def test_the_shared_block_is_copied_by_whoever_goes_on() -> None:
    f = Fixture()
    f.append(0, 40)
    f.kv.pool.data[:] = 0
    f.kv.pool.data[f.kv.pool.block_bytes : 2 * f.kv.pool.block_bytes] = np.arange(f.kv.pool.block_bytes) % 251
    f.memory.seq_cp(0, 1)
    f.append(1, 1)
    first, second = f.memory.sequence(0).cells.tolist(), f.memory.sequence(1).cells.tolist()
    assert first == span(0, 40)
    assert second == [*span(0, 32), *span(64, 73)]
    blocks = f.kv.pool.data[: 3 * f.kv.pool.block_bytes].reshape(3, -1)
    assert (blocks[1] == blocks[2]).all()
    f.append(0, 1)  # nobody else's any more
    assert f.memory.sequence(0).cells[-1] == 40
    f.references()


def test_a_hole_is_filled_up_to_the_next_block() -> None:
    f = Fixture()
    f.append(0, 70)
    f.memory.seq_rm(0, 10, 20)
    f.append(0, 50)
    cells = f.memory.sequence(0).cells
    assert f.positions(0) == [*span(0, 10), *span(20, 120)]
    assert (cells[64:] % BLOCK_CELLS == np.arange(64, 110) % BLOCK_CELLS).all()
    assert len(set(cells.tolist())) == cells.size


def test_after_a_change_of_order_no_cell_is_given_twice() -> None:
    f = Fixture()
    f.append(0, 40)
    f.memory.seq_add(0, 0, 5, 100)  # the last token now lies in place 4 of a block whose places 5 to 31 are taken
    f.append(0, 30)
    cells = f.memory.sequence(0).cells.tolist()
    assert len(set(cells)) == len(cells) == 70
    f.references()


@pytest.mark.parametrize("n_copies", [0, 3])
def test_positions(n_copies: int) -> None:
    f = Fixture()
    f.append(0, 12)
    for i in range(1, 1 + n_copies):
        f.memory.seq_cp(0, i)
    f.memory.seq_add(0, 6, -1, -3)
    assert f.positions(0) == [0, 1, 2, 3, 3, 4, 4, 5, 5, 6, 7, 8]
    assert f.memory.sequence(0).tokens.tolist() == [0, 1, 2, 3, 6, 4, 7, 5, 8, 9, 10, 11]
    f.memory.seq_add(0, -1, 4, -2)
    assert f.positions(0) == [0, 1, 1, 4, 4, 5, 5, 6, 7, 8]
    f.memory.seq_div(0, 4, -1, 3)
    assert f.positions(0) == [0, 1, 1, 1, 1, 1, 1, 2, 2, 2]
    f.append(0, 2)
    assert f.positions(0)[-3:] == [2, 3, 4]
    assert all(f.positions(i) == span(0, 12) for i in range(1, 1 + n_copies))
    f.references()


def test_positions_that_cannot_be() -> None:
    f = Fixture()
    f.append(0, 5)
    with pytest.raises(UsageError, match="2147483648"):
        f.memory.seq_add(0, 0, -1, (1 << 31) - 4)
    assert f.positions(0) == span(0, 5)
    fixed = Fixture(can_shift=False)
    fixed.append(0, 5)
    for change in (lambda: fixed.memory.seq_add(0, 0, -1, 1), lambda: fixed.memory.seq_div(0, 0, -1, 2)):
        with pytest.raises(UnsupportedError):
            change()
    fixed.memory.seq_add(0, 0, -1, 0)
    fixed.memory.seq_div(0, 0, -1, 1)


def test_a_full_pool_changes_nothing() -> None:
    f = Fixture(n_ctx=128)
    f.append(0, 100)
    f.memory.seq_cp(0, 1)
    before = f.state()
    for seq_id, n in ((0, 29), (1, 28), (2, 1)):
        with pytest.raises(ContextFullError):
            f.append(seq_id, n)
        assert f.state() == before
    assert f.memory.seq_rm(1, 96)
    f.append(0, 28)
    f.references()


def test_what_is_counted() -> None:
    f = Fixture(n_ctx=640, window=64)
    f.append(0, 300)
    full, window = f.memory.usage().kinds
    assert (full.name, full.cells_used, full.cells_total) == ("full", 320, 640)
    assert (window.name, window.window, window.cells_used, window.cells_peak) == ("window", 64, 96, 320)
    assert full.bytes_used == 10 * f.kv.pools[0].block_bytes
    assert f.memory.usage().bytes_used == full.bytes_used + window.bytes_used
    assert f.memory.usage().kind("window") == window
    f.memory.clear()
    assert (f.memory.usage().bytes_used, f.positions(0)) == (0, [])


def test_a_window_refuses_to_go_back_behind_what_it_holds() -> None:
    f = Fixture(window=64)
    f.append(0, 300)
    f.memory.seq_cp(0, 1)
    assert f.memory.rewind == "points"
    assert (f.memory.seq_pos_min(0), f.memory.seq_pos_max(0)) == (224, 299)
    before = f.state()
    assert not f.memory.seq_rm(0, 280)
    assert not f.memory.seq_rm(-1, 280)
    for wrong in (lambda: f.memory.seq_cp(0, 2, 0, 280), lambda: f.memory.seq_div(0, 0, -1, 3)):
        with pytest.raises(RewindError):
            wrong()
    assert f.state() == before
    assert f.memory.seq_rm(0, 290)
    assert f.memory.seq_rm(0, 3, 100)
    f.memory.seq_add(0, 100, -1, -97)
    assert f.positions(0) == span(0, 193)
    assert f.memory.seq_rm(0)
    f.append(0, 10)
    assert f.positions(0) == span(0, 10)
    f.references()


def test_a_block_is_kept_while_any_window_holds_it() -> None:
    f = Fixture(window=64)
    f.append(0, 200)
    f.memory.seq_cp(0, 1)
    used = f.kv.pools[1].n_used
    f.append(0, 200)
    assert f.kv.pools[1].n_used > used  # both windows
    f.memory.seq_rm(1)
    assert f.kv.pools[1].n_used <= 3
    f.references()


def test_poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole suite runs with it: what was never written, and what was freed, is NaN."""
    pool = BlockPool(64, 4)
    first = pool.allocate(1)
    assert np.isnan(pool.data[:64].view(np.float32)).all()
    pool.data[:64] = 0
    pool.release(np.array(first))
    assert np.isnan(pool.data[:64].view(np.float16)).all()
    monkeypatch.delenv("LLMKIT_POISON")
    assert not BlockPool(64, 4).data.any()
