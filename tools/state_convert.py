"""`llmkit state convert`: between llmkit's state files and llama.cpp's sequence and session files.

Owns the options and which reader and writer meet. The formats are llmkit/engine/state/save_load.py's and llama.py's.
"""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmkit import report
from llmkit.errors import UsageError
from llmkit.files.atomic import check_can_write
from llmkit.params import ContextParams

from . import _options as options
from ._engine import open_engine

if TYPE_CHECKING:
    from llmkit.engine.context import Context


class Format(StrEnum):
    """llmkit's own; llama.cpp's sequence file (a server's slot); llama.cpp's session file (a prompt cache)."""

    LLMKIT = "llmkit"
    GGSQ = "ggsq"
    GGSN = "ggsn"


def convert_cli(
    source: Annotated[Path, typer.Argument(metavar="IN", help="A file of any of the formats.", show_default=False)],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write.", show_default=False)],
    to: Annotated[
        Format,
        typer.Option("--to", metavar="FORMAT", help="llmkit, ggsq (llama.cpp's slots) or ggsn (its prompt caches)."),
    ] = Format.LLMKIT,
    model: options.ModelOption = None,
    seq_id: Annotated[
        int | None, typer.Option("--seq", metavar="ID", help="The sequence to take, where IN holds several.")
    ] = None,
    n_ctx: options.CtxSizeOption = 0,
    type_k: options.TypeKOption = "f16",
    type_v: options.TypeVOption = "f16",
    swa_full: options.SwaFullOption = False,
    overrides: options.OverrideOption = None,
    compress: Annotated[bool, typer.Option("--compress", help="llmkit's: smaller, but copied on loading.")] = False,
) -> int:
    """Convert a state of one sequence to another format; the model tells how its keys and values lie.

    What llama.cpp computed goes on near to what it would have said, not bit for bit: its file becomes a state with the
    note `from=llama.cpp`.
    """
    if compress and to != Format.LLMKIT:
        raise UsageError(f"--compress is for llmkit's own files, not for {to}")
    if target.exists() and source.resolve() == target.resolve():
        raise UsageError("the two files are the same", "Give another name for the result.")
    from llmkit.engine.generation.timings import Timings
    from llmkit.engine.state.info import read_state_info
    from llmkit.files.llama_state import llama_kind

    kind = Format(llama_kind(source) or Format.LLMKIT)
    check_can_write(target)
    if kind == Format.LLMKIT:
        info = read_state_info(source)
        n_ctx, type_k, type_v = n_ctx or info.n_ctx, info.type_k, info.type_v  # as the file has them
    context = ContextParams(n_ctx, type_k=type_k, type_v=type_v, swa_full=swa_full)
    with open_engine(model, context, Timings(), needs_text=False, overrides=overrides or []) as engine:
        note = _read(engine.ctx, source, kind, seq_id)
        n_tokens = engine.ctx.memory.sequence(0).n_tokens
        n_bytes = _write(engine.ctx, target, to, note, compress)
    report.note(f"{source} ({kind}) to {target} ({to}): {n_tokens} tokens, {n_bytes / 1e6:.1f} MB")
    return 0


def _read(ctx: "Context", source: Path, kind: Format, seq_id: int | None) -> dict[str, str]:
    """Loads into sequence 0; what is to be noted. A session's last token, which its file only names, is computed."""
    seq = ctx.memory.sequence(0)
    if kind == Format.LLMKIT:
        from llmkit.engine.state.save_load import load_state

        info = load_state(ctx, source, seq if seq_id is None else {seq_id: seq})
        return dict(info.metadata)
    from llmkit.engine.batch import Segment
    from llmkit.engine.state.llama import read_llama

    if after := read_llama(ctx, source, seq, seq_id=seq_id):
        ctx.decode([Segment(seq, after, "none")])
    return {"from": "llama.cpp"}


def _write(ctx: "Context", target: Path, to: Format, note: dict[str, str], compress: bool) -> int:
    """The size of what was written. llama-completion computes a session's last token itself, for its logits."""
    from llmkit.engine.state.save_load import cut_last, save_state

    seq = ctx.memory.sequence(0)
    if to == Format.LLMKIT:
        info = save_state(ctx, target, seq, metadata=note, compress=compress)
        if info.compressed:
            report.note("it is compressed: loading copies it instead of mapping it")
        return info.n_bytes
    from llmkit.engine.state.llama import write_llama

    session = to == Format.GGSN
    after = cut_last(ctx, seq) if session else []
    if not seq.n_tokens:
        raise UsageError(f"{target}: too few tokens for llama.cpp's file", "a session needs two or more")
    return write_llama(ctx, target, seq, session=session, tokens_after=after)
