"""States: what is restored goes on with the bits that going on would have given, and memory is what it was before.

What is refused is in test_state_refused, the file itself in tests/files/test_state_*.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import engine_runs as runs
from tests.engine.state.states import IDS, counted

runs.need_engine()

from llmkit.engine.context import Context  # noqa: E402
from llmkit.engine.state.save_load import cut_last, load_state, read_state_info, save_state, verify_state  # noqa: E402
from llmkit.errors import UsageError  # noqa: E402
from llmkit.files.state_errors import StateSequenceError, StateWindowError  # noqa: E402
from llmkit.memory.prefix_tree import PrefixTree  # noqa: E402
from llmkit.params import KV_TYPES, ContextParams  # noqa: E402


def greedy(ctx: Context, seq: Any, row: np.ndarray, n: int) -> list[np.ndarray]:
    """Logits of n steps, each with the best token of the last."""
    rows = [row]
    for _ in range(n):
        rows.append(runs.feed(ctx, [(seq, [int(rows[-1].argmax())])])[-1])
    return rows


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize(("arch", "n"), [("llama", 1), ("llama", 100), ("llama", 128), ("gemma3", 40), ("gemma3", 300)])
def test_restored_is_never_stopped(models: dict[str, Path], path: Path, arch: str, n: int, compress: bool) -> None:
    """Full logits and greedy text; blocks at random places, NaN in those that are free."""
    with runs.context(models[arch], kv="f16", seed=1) as ctx:
        seq = ctx.new_sequence()
        row = runs.feed(ctx, [(seq, IDS[:n])])[-1]
        save_state(ctx, path, seq, logits=row, compress=compress)
        want = greedy(ctx, seq, row, 40)
    with runs.context(models[arch], kv="f16", seed=2) as ctx:
        seq = ctx.new_sequence()
        info = load_state(ctx, path, seq)
        assert info.tokens[0].tolist() == IDS[:n] == seq.tokens.tolist()
        assert (ctx.kv.pool.n_mapped > 0) != compress
        got = greedy(ctx, seq, info.logits[0], 40)
        assert counted(ctx)
        ctx.free_sequence(seq)
        assert counted(ctx)
    runs.assert_same_bits(np.array(got), np.array(want), "restored")


@pytest.mark.parametrize("kv", [*KV_TYPES, "q8_0/q4_0"])
def test_every_type(models: dict[str, Path], path: Path, kv: str) -> None:
    with runs.context(models["gemma3"], kv=kv, seed=3) as ctx:
        seq = ctx.new_sequence()
        runs.feed(ctx, [(seq, IDS[:150])])
        save_state(ctx, path, seq)
        want = runs.feed(ctx, [(seq, IDS[150:200])])
    with runs.context(models["gemma3"], kv=kv, seed=4) as ctx:
        seq = ctx.new_sequence()
        load_state(ctx, path, seq)
        got = runs.feed(ctx, [(seq, IDS[150:200])])
    runs.assert_same_bits(got, want, kv)


def test_a_saved_state_is_saved_again_to_equal_bytes(models: dict[str, Path], tmp_path: Path) -> None:
    """Wherever blocks lie, and however the sequences share them."""
    first, second = tmp_path / "1", tmp_path / "2"
    with runs.context(models["gemma3"], kv="q8_0", seed=5) as ctx:
        memory = ctx.memory
        runs.feed(ctx, [(memory.sequence(0), IDS[:100])], "none")
        memory.seq_cp(0, 1)
        runs.feed(ctx, [(memory.sequence(0), IDS[100:130]), (memory.sequence(1), IDS[200:240])], "none")
        memory.seq_rm(1, 120, 125)
        memory.seq_cp(1, 7)
        save_state(ctx, first, {i: memory.sequence(i) for i in (1, 0, 7)}, metadata={"who": "me"})
    with runs.context(models["gemma3"], kv="q8_0", seed=6) as ctx:
        info = load_state(ctx, first)
        assert info.n_tokens == {1: 135, 0: 130, 7: 135}
        assert info.metadata == {"who": "me"}
        save_state(ctx, second, {i: ctx.memory.sequence(i) for i in (1, 0, 7)}, metadata={"who": "me"})
        assert counted(ctx)
    assert first.read_bytes() == second.read_bytes()


def test_shared_blocks_are_there_once(models: dict[str, Path], path: Path) -> None:
    with runs.context(models["llama"], kv="f16") as ctx:
        memory = ctx.memory
        runs.feed(ctx, [(memory.sequence(0), IDS[:320])], "none")
        for i in range(1, 20):
            memory.seq_cp(0, i)
            runs.feed(ctx, [(memory.sequence(i), IDS[i : i + 5])], "none")
        info = save_state(ctx, path, {i: memory.sequence(i) for i in range(20)})
        assert info.n_blocks == (10 + 19,)
        used, want = ctx.kv.pool.n_used, [memory.sequence(i).tokens.tolist() for i in range(20)]
        memory.clear()
        load_state(ctx, path)
        assert ctx.kv.pool.n_used == used
        assert [memory.sequence(i).tokens.tolist() for i in range(20)] == want
        assert counted(ctx)


def test_what_is_removed_is_not_in_the_file(models: dict[str, Path], path: Path) -> None:
    """Neither tokens that were removed nor cells of sequences that were not saved."""
    marks = [130, 129, 130, 129, 130, 128, 129]
    with runs.context(models["llama"], kv="f32") as ctx:
        alone = ctx.new_sequence()
        runs.feed(ctx, [(alone, IDS[:40])], "none")
        save_state(ctx, path, alone)
        want = path.read_bytes()
        ctx.free_sequence(alone)
        memory = ctx.memory
        runs.feed(ctx, [(memory.sequence(0), IDS[:40] + marks)], "none")
        memory.seq_cp(0, 1, 0, 40)
        memory.seq_rm(0, 40)
        for i in (0, 1):
            save_state(ctx, path, {0: memory.sequence(i)})
            assert path.read_bytes() == want


def test_a_mapped_block_is_never_written(models: dict[str, Path], path: Path) -> None:
    """Going on, cutting back, shifting and failing leave the file as it is; each shows what it would have shown."""
    results = []
    for restore in (False, True):
        with runs.context(models["llama"], kv="f16", seed=7) as ctx:
            memory = ctx.memory
            if restore:
                load_state(ctx, path, {0: memory.sequence(0)})
            else:
                runs.feed(ctx, [(memory.sequence(0), IDS[:110])], "none")
                save_state(ctx, path, memory.sequence(0))
            before = path.read_bytes()
            memory.seq_cp(0, 1)
            rows = [runs.feed(ctx, [(memory.sequence(0), IDS[110:120]), (memory.sequence(1), IDS[200:230])])]
            memory.seq_rm(1, 70)
            rows.append(runs.feed(ctx, [(memory.sequence(1), IDS[70:75])]))
            memory.seq_add(0, 40, -1, 7)
            rows.append(runs.feed(ctx, [(memory.sequence(0), IDS[:3])]))
            memory.seq_rm(0, 0, 33)
            memory.seq_div(0, 50, -1, 2)
            rows.append(runs.feed(ctx, [(memory.sequence(0), IDS[:3]), (memory.sequence(1), IDS[:2])]))
            assert counted(ctx)
            results.append(np.concatenate(rows))
            assert path.read_bytes() == before
            memory.clear()
            assert counted(ctx)
            assert ctx.kv.pool.n_mapped == 0
    runs.assert_same_bits(results[1], results[0], "mapped")


def test_a_shift_not_done_yet_is_saved(models: dict[str, Path], path: Path) -> None:
    with runs.context(models["llama"], kv="f16") as ctx:
        memory = ctx.memory
        runs.feed(ctx, [(memory.sequence(0), IDS[:90])], "none")
        memory.seq_rm(0, 5, 20)
        memory.seq_add(0, 20, -1, -15)
        save_state(ctx, path, memory.sequence(0))
        assert memory.sequence(0).chain.n_exact == 5
        want = runs.feed(ctx, [(memory.sequence(0), IDS[:9])])
        load_state(ctx, path, {0: memory.sequence(3)})
        assert memory.sequence(3).chain.n_exact == 5
        runs.assert_same_bits(runs.feed(ctx, [(memory.sequence(3), IDS[:9])]), want, "shifted")
        assert counted(ctx)


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_the_last_token_again(models: dict[str, Path], path: Path, arch: str) -> None:
    """Without logits in the file the last token is decoded once more; where a window is in the way, all tokens."""
    again, lengths = [], (1, 40, 140, 143, 144, 150, 175, 176)
    with runs.context(models[arch], kv="f16") as ctx:
        whole = runs.prefill(ctx, IDS[:200], 200)
        for n in lengths:
            seq = ctx.new_sequence()
            runs.feed(ctx, [(seq, IDS[: n if n != 150 else 180])], "none")
            if n == 150:  # cut back as far as it can be
                n = save_state(ctx, path, seq).points[0] if arch == "gemma3" else n
                ctx.kv.truncate(seq, n)
            point = save_state(ctx, path, seq).points[0]
            load_state(ctx, path, seq)
            tokens = cut_last(ctx, seq)
            assert tokens in (IDS[n - 1 : n], IDS[:n])
            assert (1 < point == n) == (1 < len(tokens) == n)
            again.append(len(tokens) > 1)
            runs.assert_same_bits(runs.feed(ctx, [(seq, tokens)])[-1:], whole[n - 1 : n], f"{n} tokens")
    assert again == [arch == "gemma3" and n == 150 for n in lengths]


def test_points_of_a_window(models: dict[str, Path], path: Path) -> None:
    """A state says how far back each sequence can be cut: there it can, one token before it cannot."""
    with runs.context(models["gemma3"], kv="f16") as ctx:
        memory = ctx.memory
        runs.feed(ctx, [(memory.sequence(0), IDS[:211])], "none")
        point = save_state(ctx, path, memory.sequence(0)).points[0]
        assert 1 < point < 211
        assert read_state_info(path).points[0] == point
        load_state(ctx, path, {0: memory.sequence(1)})
        for n, possible in ((point - 1, False), (point, True)):
            assert memory.seq_rm(1, n) is possible


def test_in_a_full_pool_what_is_replaced_makes_room(models: dict[str, Path], path: Path) -> None:
    with Context(runs.load(models["llama"]), ContextParams(n_ctx=256, n_threads=1)) as ctx:
        for compress in (False, True):
            seq = ctx.memory.sequence(0)
            ctx.memory.clear()
            runs.feed(ctx, [(seq, IDS[:250])], "none")
            save_state(ctx, path, seq, compress=compress)
            want = runs.feed(ctx, [(seq, IDS[:3])])
            assert ctx.kv.pool.n_free == 0
            load_state(ctx, path, seq)
            runs.assert_same_bits(runs.feed(ctx, [(seq, IDS[:3])]), want, "in a full pool")
            assert counted(ctx)


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize(("here", "there"), [(512, 48), (48, 512), (40, 48)])
def test_a_context_smaller_than_the_window(
    models: dict[str, Path], path: Path, here: int, there: int, compress: bool
) -> None:
    """There all layers have blocks in common. What fits goes from one to the other, however sequences share it."""
    with runs.context(models["gemma3"], kv="q8_0", n_ctx=here) as ctx:
        pair = [ctx.memory.sequence(i) for i in range(2)]
        runs.feed(ctx, [(pair[0], IDS[:34])], "none")
        ctx.memory.seq_cp(0, 1, 0, 32)
        n = [seq.n_tokens for seq in pair]
        save_state(ctx, path, dict(enumerate(pair)), compress=compress)
        want = runs.feed(ctx, [(pair[0], IDS[:3])])
    with runs.context(models["gemma3"], kv="q8_0", n_ctx=there) as ctx:
        pair = [ctx.new_sequence() for _ in range(2)]
        load_state(ctx, path, dict(enumerate(pair)))
        assert (ctx.kv.pool.n_mapped > 0) == (max(here, there) == 48 and not compress)
        runs.assert_same_bits(runs.feed(ctx, [(pair[0], IDS[:3])]), want, "another context")
        assert [seq.n_tokens for seq in pair] == [n[0] + 3, n[1]]
        assert counted(ctx)


def test_what_a_window_has_dropped_is_not_made_up(models: dict[str, Path], path: Path) -> None:
    with runs.context(models["gemma3"], n_ctx=512) as ctx:
        seq = ctx.new_sequence()
        runs.feed(ctx, [(seq, IDS[:200])], "none")
        ctx.memory.seq_cp(0, 1)
        save_state(ctx, path, seq)
    with runs.context(models["gemma3"], n_ctx=48) as ctx, pytest.raises(StateWindowError, match="dropped"):
        load_state(ctx, path, ctx.new_sequence())


def test_a_loaded_state_enters_the_prefix_tree(models: dict[str, Path], path: Path) -> None:
    """Its mapped blocks are the tree's when the sequence has ended, and let go with the entry."""
    with runs.context(models["gemma3"], kv="f16", n_ctx=512) as ctx:
        seq = ctx.new_sequence()
        runs.feed(ctx, [(seq, IDS[:130])], "none")
        save_state(ctx, path, seq)
        want = runs.feed(ctx, [(seq, IDS[130:150])])
        ctx.free_sequence(seq)
        tree, seq = PrefixTree(ctx.kv), ctx.new_sequence()
        load_state(ctx, path, seq)
        tree.insert(seq, "")
        ctx.free_sequence(seq)
        assert ctx.kv.pool.n_mapped > 0
        other = ctx.new_sequence()
        assert tree.attach(tree.match(IDS[:150], [""]), other) == 130
        runs.assert_same_bits(runs.feed(ctx, [(other, IDS[130:150])]), want, "through the tree")
        ctx.free_sequence(other)
        tree.clear()
        assert [pool.n_mapped for pool in ctx.kv.pools] == [pool.n_used for pool in ctx.kv.pools] == [0, 0]


def test_one_after_the_other(models: dict[str, Path], tmp_path: Path) -> None:
    """Save A and B, load A, ask, load A again, ask again: equal, whatever was between, and nobody else notices."""
    with runs.context(models["gemma3"], kv="f16", n_ctx=1024) as ctx:
        memory = ctx.memory
        for name, ids in (("a", IDS[:90]), ("b", IDS[40:200])):
            runs.feed(ctx, [(memory.sequence(0), ids)], "none")
            save_state(ctx, tmp_path / name, memory.sequence(0))
            memory.seq_rm(0)
        runs.feed(ctx, [(memory.sequence(5), IDS[7:77])], "none")
        memory.seq_cp(5, 6)
        answers = []
        for name in ("a", "b", "a", "b"):
            load_state(ctx, tmp_path / name, memory.sequence(0))
            answers.append(runs.feed(ctx, [(memory.sequence(0), [4, 5, 6])]))
        runs.assert_same_bits(answers[2], answers[0], "a")
        runs.assert_same_bits(answers[3], answers[1], "b")
        neighbours = runs.feed(ctx, [(memory.sequence(5), [3, 4])])
        memory.clear()
        runs.feed(ctx, [(memory.sequence(1), IDS[7:77])], "none")
        runs.assert_same_bits(neighbours, runs.feed(ctx, [(memory.sequence(1), [3, 4])]), "a neighbour")
        assert counted(ctx)


def test_which_sequences(models: dict[str, Path], path: Path) -> None:
    with runs.context(models["llama"]) as ctx:
        memory = ctx.memory
        runs.feed(ctx, [(memory.sequence(0), IDS[:50]), (memory.sequence(5), IDS[9:80])], "none")
        save_state(ctx, path, {0: memory.sequence(0), 5: memory.sequence(5), 9: ctx.new_sequence()})
        assert verify_state(path).n_tokens == {0: 50, 5: 71, 9: 0}
        memory.clear()
        load_state(ctx, path, {5: memory.sequence(2)})
        assert memory.sequence(2).tokens.tolist() == IDS[9:80]
        assert memory.sequence(5).n_tokens == 0
        assert ctx.kv.pool.n_used == 3
        with pytest.raises(StateSequenceError, match="3 sequences"):
            load_state(ctx, path, memory.sequence(2))
        with pytest.raises(StateSequenceError, match="no sequence 1"):
            load_state(ctx, path, {1: memory.sequence(2)})
        with pytest.raises(UsageError):
            load_state(ctx, path, {0: memory.sequence(2), 5: memory.sequence(2)})
        seq = ctx.new_sequence()
        ctx.free_sequence(seq)
        for call in (lambda: load_state(ctx, path, {5: seq}), lambda: save_state(ctx, path, seq)):
            with pytest.raises(UsageError, match="freed"):
                call()
        assert memory.sequence(2).tokens.tolist() == IDS[9:80]
        assert counted(ctx)
