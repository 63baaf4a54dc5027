"""Keys turned to other positions: a pure rotation for every kind of RoPE and every type, which no sharer notices."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import engine_runs as runs
from tests import reference as ref
from tests.engine.interrupts import Interrupter
from tests.make_models import make_model

runs.need_engine()

from llmkit.engine.batch import Segment  # noqa: E402
from llmkit.engine.context import Context  # noqa: E402
from llmkit.errors import ContextFullError, UnsupportedError  # noqa: E402
from llmkit.params import ContextParams  # noqa: E402

N_VOCAB = 128
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 8.0, "rope.scaling.original_context_length": 64}
KINDS = {
    "neighbours": ("llama", {}),
    "halves": ("qwen2", {}),
    "a part of the head": ("stablelm", {}),
    "factors": ("exaone", {}),
    "long or short factors": ("phi3", {}),
    "yarn": ("llama", YARN),
    "linear": ("llama", {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
    "two bases": ("gemma3", {"rope.freq_base_swa": 500.0}),
    "window layers only": ("cohere2", {}),
    "distance": ("bloom", {}),
}


def tiny(folder: Path, arch: str, keys: dict[str, Any], **changes: Any) -> Path:
    sizes: dict[str, Any] = {
        "n_embd": 64,
        "head_dim": 64,
        "n_head": 2,
        "n_head_kv": 1,
        "n_ctx_train": 1024,
        "window": 40,
    }
    metadata = {f"{arch}.{key}": value for key, value in keys.items()}
    return make_model(folder / "m.gguf", arch=arch, window_pattern=(1, 0), metadata=metadata, **sizes | changes)


def decode(ctx: Context, seq_id: int, ids: list[int]) -> np.ndarray:
    return np.array(ctx.decode([Segment(ctx.memory.sequence(seq_id), ids, "all")]))


def shift_all(path: Path, type_k: str, delta: int, swa_full: bool = True) -> float:
    """NMSE of logits when everything before has moved: only distances count, so nothing should change."""
    ids = runs.random_ids(110, N_VOCAB, seed=1)
    params = ContextParams(n_ctx=512, n_ubatch=64, n_threads=2, type_k=type_k, type_v="f32", swa_full=swa_full)
    with Context(runs.load(path), params) as ctx:
        decode(ctx, 0, ids[:100])
        ctx.memory.seq_cp(0, 1)
        want = decode(ctx, 1, ids[100:])
        ctx.memory.seq_cp(0, 2)
        ctx.memory.seq_add(0, -1, -1, delta)
        got = decode(ctx, 0, ids[100:])
        assert ctx.memory.seq_pos_max(0) == 109 + delta
        runs.assert_same_bits(decode(ctx, 2, ids[100:]), want, "a sequence that shared the cells")
        return ref.ops.nmse(got, want)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_rope(kind: str, tmp_path: Path) -> None:
    arch, keys = KINDS[kind]
    assert shift_all(tiny(tmp_path, arch, keys), "f32", 133) < 1e-9


def test_a_window_turns_what_it_holds(tmp_path: Path) -> None:
    assert shift_all(tiny(tmp_path, "gemma3", {"rope.freq_base_swa": 500.0}), "f32", 133, swa_full=False) < 1e-9


@pytest.mark.parametrize(
    ("type_k", "limit"),
    [("f16", 1e-3), ("bf16", 1e-3), ("q8_0", 1e-3), ("q5_0", 2e-2), ("q4_1", 2e-2), ("q4_0", 2e-2), ("iq4_nl", 2e-2)],
)
def test_every_type(type_k: str, limit: float, tmp_path: Path) -> None:
    assert shift_all(tiny(tmp_path, "llama", {}), type_k, 20) < limit


def test_a_shift_is_not_nothing(tmp_path: Path) -> None:
    """What the tests above would not see: half of the tokens move, and logits change as the twin's do."""
    ids = runs.random_ids(60, N_VOCAB, seed=2)
    with Context(runs.load(tiny(tmp_path, "llama", {})), ContextParams(n_ctx=256, type_k="f32", type_v="f32")) as ctx:
        decode(ctx, 0, ids[:50])
        ctx.memory.seq_cp(0, 1)
        ctx.memory.seq_add(0, 0, 25, -10)
        ctx.memory.seq_add(0, 25, -1, 100)
        moved, same = decode(ctx, 0, ids[50:]), decode(ctx, 1, ids[50:])
        assert ctx.memory.sequence(0).positions.tolist() == [*range(15), *range(125, 160)]
        assert ref.ops.nmse(moved, same) > 1e-4


def test_learned_positions_and_positions_of_several_parts_stay(tmp_path: Path) -> None:
    for arch in ("gpt2", "qwen2vl"):
        with Context(runs.load(tiny(tmp_path, arch, {})), ContextParams(n_ctx=64)) as ctx:
            decode(ctx, 0, [1, 2, 3])
            assert not ctx.memory.can_shift
            with pytest.raises(UnsupportedError):
                ctx.memory.seq_add(0, 0, -1, 5)


def test_a_hole_does_not_lead_beyond_the_last_learned_position(tmp_path: Path) -> None:
    with Context(runs.load(tiny(tmp_path, "gpt2", {}, n_ctx_train=96)), ContextParams(n_ctx=96)) as ctx:
        decode(ctx, 0, runs.random_ids(90, N_VOCAB, seed=3))
        assert ctx.memory.seq_rm(0, 0, 64)
        decode(ctx, 0, [1] * 6)
        with pytest.raises(ContextFullError, match="position 96"):
            decode(ctx, 0, [1])


def test_no_room_to_copy_what_is_shared(tmp_path: Path) -> None:
    ids = runs.random_ids(120, N_VOCAB, seed=4)
    with Context(runs.load(tiny(tmp_path, "llama", {})), ContextParams(n_ctx=160)) as ctx:
        decode(ctx, 0, ids[:100])
        ctx.memory.seq_cp(0, 1)
        ctx.memory.seq_add(1, 0, -1, 7)
        for _ in range(2):
            with pytest.raises(ContextFullError):
                decode(ctx, 1, [1])
            with pytest.raises(ContextFullError):
                ctx.memory.seq_cp(1, 2)
        assert (ctx.kv.pool.n_used, ctx.memory.seq_pos_max(1), ctx.memory.seq_pos_max(2)) == (4, 106, -1)
        ctx.memory.seq_rm(0)
        decode(ctx, 1, [1])


def test_interrupted_anywhere(tmp_path: Path) -> None:
    """Keys are turned once, whenever Ctrl-C falls: with what is written down for which positions they are turned."""
    files = ("memory/shifts.py", "engine/key_shift.py", "engine/thread_team.py", "memory/kv_cache.py")
    ids = runs.random_ids(45, N_VOCAB, seed=5)
    with Context(runs.load(tiny(tmp_path, "llama", {})), ContextParams(n_ctx=320, type_k="f32", type_v="f32")) as ctx:
        decode(ctx, 0, ids[:40])
        ctx.memory.seq_cp(0, 1)
        ctx.memory.seq_add(1, 5, -1, 9)
        want, n, step = decode(ctx, 1, ids[40:]), 1, 13
        while True:
            ctx.memory.seq_cp(0, 1)
            ctx.memory.seq_add(1, 5, -1, 9)
            sys.settrace(Interrupter(n, files))
            try:
                decode(ctx, 1, ids[40:])
            except KeyboardInterrupt:
                pass
            else:
                break
            finally:
                sys.settrace(None)
            assert ctx.memory.sequence(1).positions.tolist() == [*range(5), *range(14, 49)], n
            runs.assert_same_bits(decode(ctx, 1, ids[40:]), want, f"interrupted at instruction {n}")
            n += step
        assert n > 20 * step
        ctx.memory.clear()
        assert ctx.kv.pool.n_used == 0
