"""A context in clumsy hands: every misuse has a name, and whatever happens its memory is accounted for."""

import gc
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmkit.files.gguf_writer import TensorData, write_gguf
from tests import engine_runs as runs
from tests.make_models import TinyModel, build, make_model

runs.need_engine()

from llmkit.engine import memory_limit  # noqa: E402
from llmkit.engine.batch import Segment  # noqa: E402
from llmkit.engine.context import Context  # noqa: E402
from llmkit.errors import ContextFullError, NumericsError, UsageError  # noqa: E402
from llmkit.models.model import load_model  # noqa: E402
from llmkit.params import ContextParams  # noqa: E402

N_CTX = 160


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("abuse") / "m.gguf", n_layer=1)


@pytest.fixture
def ctx(path: Path) -> Iterator[Context]:
    """A context of 160 tokens whose free blocks hold NaN."""
    with Context(runs.load(path), ContextParams(n_ctx=N_CTX, n_ubatch=64, n_threads=2)) as ctx:
        ctx.kv.pool.poison(True)
        yield ctx
        for seq in list(ctx.kv.sequences):
            ctx.free_sequence(seq)
        assert ctx.kv.pool.n_free == ctx.kv.pool.n_blocks


def decode(ctx: Context, *parts: tuple[Any, list[int]], logits: Any = "all") -> np.ndarray:
    return np.array(ctx.decode([Segment(seq, tokens, logits) for seq, tokens in parts]))


def alone(ctx: Context, tokens: list[int]) -> np.ndarray:
    """All logits of a sequence that has nothing to do with others."""
    seq = ctx.new_sequence()
    try:
        return decode(ctx, (seq, tokens))
    finally:
        ctx.free_sequence(seq)


def test_a_sequence_twice_in_a_batch_goes_on_in_order(ctx: Context) -> None:
    ids = runs.random_ids(90, 100, seed=1)
    want = alone(ctx, ids)
    seq, other = ctx.new_sequence(), ctx.new_sequence()
    got = decode(ctx, (seq, ids[:5]), (other, ids[:3]), (seq, ids[5:6]), (seq, ids[6:]))
    assert seq.tokens.tolist() == ids
    runs.assert_same_bits(np.concatenate([got[:5], got[8:]]), want, "one sequence in three segments")
    runs.assert_same_bits(got[5:8], want[:3], "the sequence between")


def test_a_batch_that_fails_takes_all_of_a_sequence_back(ctx: Context) -> None:
    seq = ctx.new_sequence()
    decode(ctx, (seq, [1, 2, 3]))
    with pytest.raises(ContextFullError):
        decode(ctx, (seq, [4]), (seq, [5] * 60), (seq, [6] * 100))
    with pytest.raises(UsageError, match="100000"):
        decode(ctx, (seq, [4] * 50), (seq, [100000]))
    assert seq.tokens.tolist() == [1, 2, 3]
    assert ctx.kv.pool.n_free == ctx.kv.pool.n_blocks - 1


def test_nothing_to_do(ctx: Context) -> None:
    seq = ctx.new_sequence()
    assert ctx.decode([]).shape == (0, 128)
    assert decode(ctx, (seq, []), logits="none").shape == (0, 128)
    assert decode(ctx, (seq, [])).shape == (0, 128)
    got = decode(ctx, (seq, []), (seq, [1, 2]), (seq, []))
    runs.assert_same_bits(got, alone(ctx, [1, 2]), "between empty segments")
    with pytest.raises(UsageError, match="last"):
        Segment(seq, [], "last")


@pytest.mark.parametrize(
    "tokens", [[-1], [128], [2**31], [2**70], [-(2**70)], [1.0], [1.5], [None], ["1"], [[1]], [[1], [2, 3]], [True]]
)
def test_tokens_that_are_none(ctx: Context, tokens: Any) -> None:
    seq = ctx.new_sequence()
    with pytest.raises(UsageError):
        ctx.decode([Segment(seq, [1, 2], "none"), Segment(seq, tokens, "all")])
    assert seq.n_tokens == 0


def test_an_unknown_wish_for_logits(ctx: Context) -> None:
    with pytest.raises(UsageError, match="'lats'"):
        Segment(ctx.new_sequence(), [1], "lats")  # type: ignore[arg-type]


def test_sequences_that_are_gone_or_not_ours(ctx: Context, path: Path) -> None:
    seq = ctx.new_sequence()
    decode(ctx, (seq, [1, 2]))
    ctx.free_sequence(seq)
    ctx.free_sequence(seq)
    with pytest.raises(UsageError, match="freed"):
        decode(ctx, (ctx.new_sequence(), [1]), (seq, [3]))
    with Context(runs.load(path), ContextParams(n_ctx=64, n_threads=1)) as other:
        foreign = other.new_sequence()
        decode(other, (foreign, [1, 2]))
        with pytest.raises(UsageError, match="another context"):
            decode(ctx, (foreign, [3]))
        with pytest.raises(UsageError, match="another context"):
            ctx.free_sequence(foreign)
        assert foreign.tokens.tolist() == [1, 2]


def test_more_logits_than_memory(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_limit, "free_memory", lambda: 1 << 10)
    monkeypatch.setattr(memory_limit, "_ALWAYS_ALLOWED", 1 << 10)
    seq = ctx.new_sequence()
    with pytest.raises(UsageError, match="logits of 100 tokens"):
        decode(ctx, (seq, [1] * 100))
    assert seq.n_tokens == 0


def test_a_context_larger_than_the_machine(path: Path) -> None:
    model = runs.load(path)
    for n_ctx in (2**33, 10**15, 10**30):
        with pytest.raises(ContextFullError, match=r"GiB.*the machine has") as caught:
            Context(model, ContextParams(n_ctx=n_ctx))
        assert "-c " in caught.value.hint


@pytest.mark.parametrize("where", ["blk.0.attn_v", "output", "token_embd", "blk.0.ffn_norm"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_no_numbers(tmp_path: Path, where: str, value: float) -> None:
    """A named error each time, no warning, and neither tokens nor blocks are left."""
    metadata, tensors = build(TinyModel(n_layer=1))
    spoiled = [tensor if tensor.name != f"{where}.weight" else spoil(tensor, value) for tensor in tensors]
    write_gguf(tmp_path / "m.gguf", metadata, spoiled)
    with Context(load_model(tmp_path / "m.gguf"), ContextParams(n_ctx=64, n_threads=2)) as ctx:
        seq = ctx.new_sequence()
        for _ in range(2):
            with pytest.raises(NumericsError):
                decode(ctx, (seq, [0, 1, 2]))
            assert seq.n_tokens == 0
            assert ctx.kv.pool.n_free == ctx.kv.pool.n_blocks
        with pytest.raises(NumericsError):
            ctx.warm_up()
        assert ctx.kv.sequences == {seq}


def spoil(tensor: TensorData, value: float) -> TensorData:
    """The tensor with `value` in its first 64 places, a row of a matrix."""
    assert callable(tensor.data)
    values = np.array(tensor.data()).view(np.float32).copy()
    values[:64] = value
    return TensorData(tensor.name, tensor.shape, tensor.type, values.view(np.uint8))


def test_a_token_that_overflows_leaves_the_others_alone(tmp_path: Path) -> None:
    """The embedding of one token is NaN: whoever never uses it never notices, before or after."""
    metadata, tensors = build(TinyModel(n_layer=1))
    write_gguf(tmp_path / "m.gguf", metadata, [spoil(t, np.nan) if "token_embd" in t.name else t for t in tensors])
    with Context(load_model(tmp_path / "m.gguf"), ContextParams(n_ctx=96, n_threads=2)) as ctx:
        good, bad = ctx.new_sequence(), ctx.new_sequence()
        want = alone(ctx, [5, 6, 7, 8])
        got = [decode(ctx, (good, [5, 6]))]
        with pytest.raises(NumericsError):
            decode(ctx, (bad, [5, 0]), (good, [7]))
        assert (good.n_tokens, bad.n_tokens) == (2, 0)
        got.append(decode(ctx, (good, [7, 8])))
        runs.assert_same_bits(np.concatenate(got), want, "a sequence beside one that failed")


def test_thousands_of_sequences(path: Path) -> None:
    with Context(runs.load(path), ContextParams(n_ctx=64 * 1024, n_threads=2)) as ctx:
        ids = runs.random_ids(2000, 100, seed=3)
        sequences = [ctx.new_sequence() for _ in ids]
        first = decode(ctx, *((seq, [i]) for seq, i in zip(sequences, ids, strict=True)), logits="last")
        for i in range(0, 2000, 200):
            runs.assert_same_bits(first[i : i + 1], alone(ctx, [ids[i]]), f"sequence {i} of 2000")
        assert ctx.kv.pool.n_free == ctx.kv.pool.n_blocks - 2000
        for seq in sequences:
            ctx.free_sequence(seq)
        assert ctx.kv.pool.n_free == ctx.kv.pool.n_blocks


def test_contexts_come_and_go_without_a_trace(path: Path) -> None:
    """Arrays that a build made stayed with the model; now a model has as many after fifty contexts as after one."""
    model = runs.load(path)

    def use(n: int) -> int:
        for _ in range(n):
            with Context(model, ContextParams(n_ctx=64, n_threads=2)) as ctx:
                decode(ctx, (ctx.new_sequence(), [1, 2, 3]))
        gc.collect()
        return len(model.weights._kept)

    assert use(1) == use(10)


STEPS = st.lists(
    st.tuples(st.sampled_from(["decode", "decode", "truncate", "free", "both", "fail"]), st.integers(0, 2**30)),
    min_size=1,
    max_size=12,
)


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(STEPS)
def test_random_histories_give_the_bits_of_a_fresh_sequence(path: Path, steps: list[tuple[str, int]]) -> None:
    """Three sequences grow, are cut, end, fail; what is left then computes what an untouched context would."""
    with Context(runs.load(path), ContextParams(n_ctx=N_CTX, n_ubatch=48, n_threads=2)) as ctx:
        ctx.kv.pool.shuffle(len(steps))
        ctx.kv.pool.poison(True)
        sequences = [ctx.new_sequence() for _ in range(3)]
        for kind, seed in steps:
            step(ctx, sequences, kind, random.Random(seed))
            held = {block for seq in sequences for block in seq.blocks}
            assert ctx.kv.pool.n_free == ctx.kv.pool.n_blocks - len(held)
        for seq in sequences:
            tokens = [*seq.tokens.tolist(), 9]
            if len(tokens) > N_CTX or (len(tokens) % 32 == 1 and not ctx.kv.pool.n_free):
                continue
            got = decode(ctx, (seq, [9]), logits="last")
            with Context(runs.load(path), ContextParams(n_ctx=N_CTX, n_threads=1)) as fresh:
                runs.assert_same_bits(got, alone(fresh, tokens)[-1:], f"{steps}")


def step(ctx: Context, sequences: list[Any], kind: str, rng: random.Random) -> None:
    """One thing that happens to a context."""
    i = rng.randrange(len(sequences))
    seq, other = sequences[i], sequences[rng.randrange(len(sequences))]
    ids = [rng.randrange(100) for _ in range(rng.choice((1, 2, 31, 32, 33, 70)))]
    if kind == "truncate":
        ctx.kv.truncate(seq, rng.randint(0, seq.n_tokens))
    elif kind == "free":
        ctx.free_sequence(seq)
        sequences[i] = ctx.new_sequence()
    elif kind == "fail":
        before = [s.tokens.tolist() for s in sequences]
        with pytest.raises((UsageError, ContextFullError)):
            decode(ctx, (seq, ids), (other, ids), (seq, [100000]))
        assert [s.tokens.tolist() for s in sequences] == before
    else:
        parts = [(seq, ids), (other, ids[:5])] if kind == "both" else [(seq, ids)]
        try:
            decode(ctx, *parts, logits=rng.choice(("none", "last", "all")))
        except ContextFullError:
            return
