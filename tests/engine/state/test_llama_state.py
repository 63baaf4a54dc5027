"""llama.cpp's state files: read from bytes written by hand, written and read back to equal bits, refused by name.

llama.cpp itself is asked in test_llama_state_peer, where it is built.
"""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import engine_runs as runs
from tests.engine.state.states import IDS, SIZES, counted
from tests.make_models import make_model

runs.need_engine()

from llmkit.engine.state.llama import read_llama, write_llama  # noqa: E402
from llmkit.errors import LlmkitError, UnsupportedError  # noqa: E402
from llmkit.files import state_errors as e  # noqa: E402
from llmkit.files.llama_state import llama_kind, read_llama_state  # noqa: E402
from llmkit.params import KV_TYPES  # noqa: E402

WINDOW = {"window": 48, "window_pattern": (1, 0)}
SMALL = {**SIZES, "n_embd": 48, "n_head": 2, "n_head_kv": 2, "head_dim": 24, "n_layer": 1}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("llama_state")
    return {
        "gemma3": make_model(folder / "gemma3.gguf", arch="gemma3", **WINDOW, **SIZES),
        "small": make_model(folder / "small.gguf", arch="llama", **SMALL),
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.bin"


# -- there and back -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("session", [False, True])
@pytest.mark.parametrize("kv", [*KV_TYPES, "q8_0/q4_1"])
def test_there_and_back(models: dict[str, Path], path: Path, kv: str, session: bool) -> None:
    """A window that has slid, keys that are rotated for other positions than they were computed for."""
    with runs.context(models["gemma3"], kv=kv, seed=1) as ctx:
        seq, back = ctx.new_sequence(), ctx.new_sequence()
        runs.feed(ctx, [(seq, IDS[:150])], "none")
        write_llama(ctx, path, seq, session=session, tokens_after=[7])
        assert llama_kind(path) == ("ggsn" if session else "ggsq")
        assert read_llama(ctx, path, back) == [7]
        assert back.tokens.tolist() == IDS[:150]
        assert back.chain.n_exact == 0  # whoever computed it
        assert counted(ctx)
        want = runs.feed(ctx, [(seq, IDS[150:190])])
        runs.assert_same_bits(runs.feed(ctx, [(back, IDS[150:190])]), want, kv)
        assert counted(ctx)


@pytest.mark.parametrize("kv", ["f16", "f32"])
def test_heads_that_are_filled_up(models: dict[str, Path], path: Path, kv: str) -> None:
    """Values of 24 dimensions lie in cells of 32, and have 24 in the file."""
    with runs.context(models["small"], kv=kv) as ctx:
        memory = ctx.memory
        runs.feed(ctx, [(memory.sequence(0), IDS[:60])], "none")
        memory.seq_rm(0, 40, 50)
        memory.seq_add(0, 50, -1, -10)
        write_llama(ctx, path, memory.sequence(0), session=True)
        assert read_llama(ctx, path, memory.sequence(1)) == []
        want = runs.feed(ctx, [(memory.sequence(0), IDS[:9])])
        runs.assert_same_bits(runs.feed(ctx, [(memory.sequence(1), IDS[:9])]), want, kv)


def test_memory_that_is_divided_otherwise(models: dict[str, Path], path: Path) -> None:
    """With and without --swa-full, as long as nothing is missing: llama.cpp's file is the same for both."""
    for n, swa_full, fits in ((40, True, True), (40, False, True), (150, True, True), (150, False, False)):
        with runs.context(models["gemma3"], kv="f16", swa_full=swa_full) as ctx:
            seq = ctx.new_sequence()
            runs.feed(ctx, [(seq, IDS[:n])], "none")
            write_llama(ctx, path, seq, session=False)
            want = runs.feed(ctx, [(seq, IDS[n : n + 9])])
        with runs.context(models["gemma3"], kv="f16", swa_full=not swa_full) as ctx:
            seq = ctx.new_sequence()
            if n > 48 and not swa_full:
                assert not fits
                with pytest.raises(e.StateWindowError, match="first"):
                    read_llama(ctx, path, seq)
                continue
            read_llama(ctx, path, seq)
            runs.assert_same_bits(runs.feed(ctx, [(seq, IDS[n : n + 9])]), want, "the other way")


# -- bytes written by hand ----------------------------------------------------------------------------------------

N, HEADS, DIM = 5, 2, 24


def section(cells: list[tuple[int, list[int]]], *, transposed: bool, streams: int = 1, kind: int = 0) -> bytes:
    """One layer's memory after llamacpp.md 2.9: token i's K is 1000 i + dim, its V the same below 0."""
    out = struct.pack("<I", streams)
    out += struct.pack("<I", 0) * (streams - 1) + struct.pack("<I", len(cells))
    for pos, ids in cells:
        out += struct.pack(f"<ii{len(ids)}i", pos, len(ids), *ids)
    width = HEADS * DIM
    k = np.array([[1000 * pos + d for d in range(width)] for pos, _ in cells], "<f4")
    out += struct.pack("<IIII", int(transposed), 1, 0, 0)
    out += struct.pack("<IQ", kind, 4 * width) + k.tobytes()
    if transposed:
        return out + struct.pack("<III", kind, 4, width) + (-k).T.tobytes()
    return out + struct.pack("<IQ", kind, 4 * width) + (-k).tobytes()


def sequence_file(memory: bytes, tokens: list[int]) -> bytes:
    return struct.pack(f"<4sII{len(tokens)}i", b"qsgg", 4, len(tokens), *tokens) + memory


def session_file(memory: bytes, tokens: list[int], arch: bytes = b"llama") -> bytes:
    head = struct.pack(f"<4sII{len(tokens)}i", b"nsgg", 11, len(tokens), *tokens)
    return head + struct.pack("<I", len(arch)) + arch + memory


PLAIN = [(i, [0]) for i in range(N)]
MIXED = [(3, [0]), (0, [0, 4]), (9, [4]), (4, [0]), (2, [0]), (1, [0, 4])]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("what", ["plain", "record", "session", "mixed", "streams"])
def test_what_llama_cpp_writes(models: dict[str, Path], path: Path, what: str, transposed: bool) -> None:
    """Every token's K and V are in its cell, whatever the order and whatever else is in the file."""
    tokens = [11, 12, 13, 14, 15]
    memory = section(MIXED if what == "mixed" else PLAIN, transposed=transposed, streams=3 if what == "streams" else 1)
    data = {
        "record": sequence_file(memory, [-1, 1, N, *tokens, 0]),
        "session": session_file(memory, [*tokens, 99]),
    }.get(what, sequence_file(memory, tokens))
    path.write_bytes(data)
    with runs.context(models["small"], kv="f32", seed=2) as ctx:
        seq = ctx.new_sequence()
        assert read_llama(ctx, path, seq, seq_id=0) == ([99] if what == "session" else [])
        assert seq.tokens.tolist() == tokens
        assert seq.positions.tolist() == list(range(N))
        layout = ctx.kv.layout
        for i, cell in enumerate(seq.cells.tolist()):
            block = ctx.kv.pool.view(cell // 32).view(np.float32)
            k = block[: layout.k_bytes // 4].reshape(HEADS, DIM, 32)[:, :, cell % 32]
            v = block[layout.k_bytes // 4 :].reshape(HEADS, 32, 32)[:, cell % 32]
            assert (k.ravel() == 1000 * i + np.arange(HEADS * DIM)).all()
            assert (-v[:, :DIM].ravel() == 1000 * i + np.arange(HEADS * DIM)).all()
            assert not v[:, DIM:].any()
        assert counted(ctx)


def test_what_is_written_is_what_llama_cpp_reads(models: dict[str, Path], path: Path) -> None:
    """Byte for byte what the writer above makes of the same numbers."""
    want = sequence_file(section(PLAIN, transposed=False), [11, 12, 13, 14, 15])
    path.write_bytes(want)
    with runs.context(models["small"], kv="f32") as ctx:
        seq = ctx.new_sequence()
        read_llama(ctx, path, seq)
        write_llama(ctx, path, seq, session=False)
        assert path.read_bytes() == want
        write_llama(ctx, path, seq, session=True)
        assert path.read_bytes() == session_file(section(PLAIN, transposed=False), [11, 12, 13, 14, 15])


# -- refused ------------------------------------------------------------------------------------------------------


def test_refused(models: dict[str, Path], path: Path) -> None:
    good, tokens = section(PLAIN, transposed=False), [11, 12, 13, 14, 15]
    hole = section([(0, [0]), (1, [0]), (3, [0])], transposed=False)
    other = [(i, [i % 2]) for i in range(4)]
    cases: list[tuple[bytes, type[LlmkitError], str, Any]] = [
        (b"", e.NotAStateError, "no state file", None),
        (b"\x80\x04pickle", e.NotAStateError, "no state file", None),
        (struct.pack("<4sI", b"qsgg", 5), e.StateVersionError, "version 5", None),
        (sequence_file(b"", tokens), e.StateTruncatedError, "before its memory", None),
        (sequence_file(good, tokens) + b"x", e.StateTruncatedError, "ends", None),
        (sequence_file(good * 2, tokens), e.StateModelError, "in 2 parts", None),
        (sequence_file(good * 3, tokens), e.StateDamagedError, "follow its end", None),
        (sequence_file(good, tokens[:3]), e.StateDamagedError, "only 3 tokens", None),
        (sequence_file(good, [*tokens[:4], 999]), e.StateModelError, "vocabulary", None),
        (sequence_file(good, [*tokens[:4], -5]), e.StateDamagedError, "below 0", None),
        (sequence_file(good, [-1, 2, N, *tokens, 0]), e.StateDamagedError, "record", None),
        (session_file(good, tokens, b"gemma3"), e.StateModelError, "gemma3", None),
        (sequence_file(hole, tokens), e.StateSequenceError, "without a hole", None),
        (sequence_file(section(other, transposed=False), tokens), e.StateSequenceError, "2 sequences", None),
        (sequence_file(good, tokens), e.StateSequenceError, "no sequence 3", 3),
        (sequence_file(section(PLAIN, transposed=False, kind=1), tokens), e.StateKvTypeError, "keys are f16", None),
        (sequence_file(struct.pack("<II", 1, 0), tokens), e.StateSequenceError, "no tokens", None),
    ]
    with runs.context(models["small"], kv="f32", n_ctx=64) as ctx:
        seq = ctx.new_sequence()
        runs.feed(ctx, [(seq, IDS[:20])], "none")
        for data, error, match, seq_id in cases:
            path.write_bytes(data)
            with pytest.raises(e.StateError, match=match) as caught:
                read_llama(ctx, path, seq, seq_id=seq_id)
            assert type(caught.value) is error, match
            assert seq.tokens.tolist() == IDS[:20]
            assert counted(ctx)
        long = [(i, [0]) for i in range(65)]
        path.write_bytes(sequence_file(section(long, transposed=False), [1] * 65))
        with pytest.raises(e.StateDoesNotFitError):
            read_llama(ctx, path, seq)


def test_rotation_must_be_the_same(models: dict[str, Path], path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with runs.context(models["gemma3"], kv="q8_0") as ctx:
        seq = ctx.new_sequence()
        runs.feed(ctx, [(seq, IDS[:9])], "none")
        write_llama(ctx, path, seq, session=False)
        assert (read_llama_state(path).cells[0].n_rot_k, read_llama_state(path).cells[0].n_rot_v) == (64, 64)
    monkeypatch.setenv("LLAMA_ATTN_ROT_DISABLE", "1")
    with runs.context(models["gemma3"], kv="q8_0") as ctx, pytest.raises(e.StateKvTypeError, match="rotated"):
        read_llama(ctx, path, ctx.new_sequence())


def test_any_damage_is_survived(models: dict[str, Path], path: Path) -> None:
    """These files have no checksum: what is possible is loaded, all else refused, and references stay right."""
    good = session_file(section(MIXED, transposed=True), [1, 2, 3, 4, 5])
    rng, n_loaded = np.random.default_rng(0), 0
    with runs.context(models["small"], kv="f32", n_ctx=64) as ctx:
        seq = ctx.new_sequence()
        for i in range(600):
            data = bytearray(good)
            for place in rng.integers(0, 220, rng.integers(1, 3)):
                data[place] = rng.choice([0, 1, 0x7F, 0x80, 0xFF])
            path.write_bytes(data[: rng.integers(1, len(data))] if i % 5 == 0 else data)
            try:
                read_llama(ctx, path, seq, seq_id=0)
                n_loaded += 1
            except e.StateError:
                pass
        assert counted(ctx)
    assert 0 < n_loaded < 300


def test_models_with_positions_of_several_parts(path: Path, tmp_path: Path) -> None:
    model = make_model(tmp_path / "vl.gguf", arch="qwen2vl")
    with runs.context(model) as ctx:
        seq = ctx.new_sequence()
        for call in (lambda: write_llama(ctx, path, seq, session=True), lambda: read_llama(ctx, path, seq)):
            with pytest.raises(UnsupportedError, match="M-RoPE"):
                call()
