"""The checks: llama.cpp's ten under its names (tests/test-save-load-state.cpp), and ours behind them.

Each is given a setting and says in words what it saw; DifferenceError where that is not what should be, SkippedError
where there is nothing to check. Equal means equal bits: llama.cpp allows an NMSE of 1e-5.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from llmkit.engine.batch import Segment
from llmkit.engine.context import Context
from llmkit.engine.state.save_load import cut_last, load_state, save_state
from llmkit.evaluate.state_checks.going_on import Continuation, DifferenceError, go_on, go_on_together, same
from llmkit.evaluate.state_checks.setting import BLOCK, Setting
from llmkit.evaluate.state_checks.two_processes import two_processes
from llmkit.files.overrides import parse_overrides
from llmkit.files.state_errors import StateError, StateKvTypeError, StateModelError

if TYPE_CHECKING:
    from llmkit.memory.sequence import Sequence

_ROTATION = "LLAMA_ATTN_ROT_DISABLE"
_N_FLIPS = 32


class SkippedError(Exception):
    """There is nothing to check here; the message says why."""


def baseline(s: Setting) -> str:
    """The prompt at once and in chunks give the same."""
    with s.context() as ctx:
        seq = ctx.memory.sequence(0)
        for first in range(0, len(s.prompt) - 1, 7):
            ctx.decode([Segment(seq, s.prompt[first : min(first + 7, len(s.prompt) - 1)], "none")])
        return same(go_on(ctx, seq, s.prompt[-1:], s.n_predict), s.baseline)


def seq_rm(s: Setting) -> str:
    """Two sequences together; the second is removed half-way."""
    with s.context() as ctx:
        seqs = [ctx.memory.sequence(i) for i in range(2)]
        half = max(1, s.n_predict // 2)
        first, _ = go_on_together(ctx, list(seqs), [s.prompt, s.other_prompt], half)
        ctx.memory.seq_rm(1)
        rest = _rest(ctx, seqs[0], first, s.n_predict)
        return same(Continuation(first.ids + rest.ids, first.logits + rest.logits), s.baseline)


def _rest(ctx: Context, seq: Sequence, begun: Continuation, n: int) -> Continuation:
    return go_on(ctx, seq, begun.ids[-1:], n - len(begun.ids)) if n > len(begun.ids) else Continuation()


def state_load(s: Setting) -> str:
    """A file in a fresh context; the last token is decoded again, for its logits."""
    with s.context() as ctx:
        seq = ctx.memory.sequence(0)
        load_state(ctx, s.file, seq)
        return same(go_on(ctx, seq, cut_last(ctx, seq), s.n_predict), s.baseline)


def copied(through_file: bool, scattered: bool) -> Callable[[Setting], str]:
    """A sequence copied to another id, through a file or by sharing its cells, in one piece or in many."""

    def check(s: Setting) -> str:
        with s.context() as ctx:
            others = _scatter(ctx, s) if scattered else []
            source, target = ctx.memory.sequence(0), ctx.memory.sequence(1)
            ctx.decode([Segment(source, s.prompt, "none")])
            if through_file:
                path = s.folder / "copied.state"
                save_state(ctx, path, source)
                load_state(ctx, path, target)
            else:
                ctx.memory.seq_cp(0, 1)
            n_pieces = len(source.extents)
            both = go_on_together(ctx, [target, source], [cut_last(ctx, seq) for seq in (target, source)], s.n_predict)
            said = [same(each, s.baseline) for each in both]
            if len({len(seq.tokens) for seq in others}) > 1:
                raise DifferenceError("other sequences have changed")
            return said[0] + (f", {n_pieces} pieces" if scattered else "")

    return check


def _scatter(ctx: Context, s: Setting) -> list[Sequence]:
    """Takes blocks in turns for four sequences and gives every other one's back; those that stay."""
    fillers = [ctx.new_sequence() for _ in range(4)]
    filler = (s.prompt * (BLOCK // len(s.prompt) + 1))[:BLOCK]
    for _ in range(-(-len(s.prompt) // BLOCK)):
        ctx.decode([Segment(seq, filler, "none") for seq in fillers])
    for seq in fillers[::2]:
        ctx.free_sequence(seq)
    return fillers[1::2]


def round_trip(s: Setting) -> str:
    """Saved, loaded and saved again: the same bytes."""
    again = s.folder / "again.state"
    with s.context() as ctx:
        load_state(ctx, s.file, ctx.memory.sequence(5))
        save_state(ctx, again, ctx.memory.sequence(5))
    if again.read_bytes() != s.file.read_bytes():
        raise DifferenceError("the second file differs from the first")
    return f"{again.stat().st_size} bytes, equal"


def refused(s: Setting) -> str:
    """Damaged and truncated files; the sequence keeps what it has, and others notice nothing."""
    with s.prefilled() as (ctx, seq):
        other = ctx.memory.sequence(1)
        begun = go_on(ctx, other, s.prompt, 1)
        held, n_refused = seq.tokens, 0
        for place, path in [*_flipped(s), *_cut(s)]:
            try:
                load_state(ctx, path, seq)
            except StateError:
                n_refused += 1
            else:
                raise DifferenceError(f"a file was loaded with {place}")
            if not np.array_equal(seq.tokens, held):
                raise DifferenceError(f"the sequence was changed by a file with {place}")
        rest = _rest(ctx, other, begun, s.n_predict)
        same(Continuation(begun.ids + rest.ids, begun.logits + rest.logits), s.baseline)
        same(go_on(ctx, seq, cut_last(ctx, seq), s.n_predict), s.baseline)
    return f"{n_refused} files"


def _flipped(s: Setting) -> Iterator[tuple[str, Path]]:
    """Files with one byte flipped, at places spread over all of it."""
    data, path = np.fromfile(s.file, np.uint8), s.folder / "flipped.state"
    for place in np.linspace(0, data.size - 1, _N_FLIPS).astype(int):
        data[place] ^= 0x40
        data.tofile(path)
        data[place] ^= 0x40
        yield f"byte {place} flipped", path


def _cut(s: Setting) -> Iterator[tuple[str, Path]]:
    data, path = s.file.read_bytes(), s.folder / "cut.state"
    for n_bytes in (0, 5, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:n_bytes])
        yield f"{n_bytes} of {len(data)} bytes", path


def rotated(s: Setting) -> str:
    """A file with rotated keys in a context without rotation."""
    params = replace(s.params, type_k="q8_0", type_v="q8_0")
    path = s.folder / "rotated.state"
    head_dim = s.model.config.head_dim
    if head_dim % BLOCK or not s.model.layout("q8_0", "q8_0").n_rot_k:
        raise SkippedError(f"heads of {head_dim} values are not rotated")
    with s.context(params) as ctx:
        ctx.decode([Segment(ctx.memory.sequence(0), s.prompt, "none")])
        save_state(ctx, path, ctx.memory.sequence(0))
    with _without_rotation(), s.context(params) as ctx:
        return _must_refuse(ctx, path, StateKvTypeError)


@contextmanager
def _without_rotation() -> Iterator[None]:
    before = os.environ.get(_ROTATION)
    os.environ[_ROTATION] = "1"
    try:
        yield
    finally:
        del os.environ[_ROTATION]
        if before is not None:
            os.environ[_ROTATION] = before


# -- ours ---------------------------------------------------------------------------------------------------------


def never_stopped(s: Setting) -> str:
    """Saved in the middle of the answer with the logits of its last token, and gone on elsewhere."""
    path, half = s.folder / "half.state", max(1, s.n_predict // 2)
    with s.context() as ctx:
        seq = ctx.memory.sequence(0)
        begun = go_on(ctx, seq, s.prompt, half)
        save_state(ctx, path, seq, logits=begun.logits[-1])
    with s.context() as ctx:
        seq = ctx.memory.sequence(3)
        (row,) = load_state(ctx, path, seq).logits.values()
        resumed = Continuation()
        resumed.add(row)
        rest = _rest(ctx, seq, resumed, s.n_predict - half + 1)
    return same(Continuation(resumed.ids + rest.ids, resumed.logits + rest.logits), s.baseline.from_step(half - 1))


def foreign(s: Setting) -> str:
    """Files of the same model with other metadata, and of another KV type."""
    from llmkit.models.model import load_model

    others = {"metadata": s.folder / "metadata.state", "kv": s.folder / "kv.state"}
    model = load_model(s.model.gguf.path, overrides=parse_overrides(["llmkit.save_load_state=int:1"]))
    with replace(s, model=model, folder=s.folder / "foreign").prefilled() as (ctx, seq):
        save_state(ctx, others["metadata"], seq)
    type_k = "f16" if s.params.type_k != "f16" else "f32"
    with replace(s, params=replace(s.params, type_k=type_k)).prefilled() as (ctx, seq):
        save_state(ctx, others["kv"], seq)
    with s.context() as ctx:
        said = [
            _must_refuse(ctx, others["metadata"], StateModelError),
            _must_refuse(ctx, others["kv"], StateKvTypeError),
        ]
    return ", ".join(said)


def _must_refuse(ctx: Context, path: Path, wanted: type[StateError]) -> str:
    """The name of the refusal."""
    try:
        load_state(ctx, path, ctx.memory.sequence(0))
    except wanted as error:
        if ctx.memory.sequence(0).n_tokens:
            raise DifferenceError("refused, but the sequence holds tokens of it") from error
        return type(error).__name__
    except StateError as error:
        raise DifferenceError(f"{path.name} was refused as {type(error).__name__}") from error
    raise DifferenceError(f"{path.name} was loaded")


def processes(s: Setting) -> str:
    """Two processes have the file loaded at once."""
    try:
        return two_processes(s)
    except NotImplementedError as error:
        raise SkippedError(str(error)) from error


Check = Callable[[Setting], str]

CHECKS: dict[str, Check] = {
    "baseline": baseline,
    "seq_rm": seq_rm,
    "state_load": state_load,
    "cp_h": copied(through_file=True, scattered=False),
    "cp_d": copied(through_file=False, scattered=False),
    "cp_h_s": copied(through_file=True, scattered=True),
    "cp_d_s": copied(through_file=False, scattered=True),
    "rt": round_trip,
    "rf": refused,
    "rot": rotated,
    "never_stopped": never_stopped,
    "foreign": foreign,
    "processes": processes,
}
"""By the names of llmkit save-load-state's rows: the first ten are llama.cpp's columns."""
