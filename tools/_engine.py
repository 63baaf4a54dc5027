"""Opening a model for a command: with its tokenizer, a context, and word of what takes long.

Owns the order of opening and what is said about it. Knows nothing of what the command then does.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmkit import report
from llmkit.errors import TokenizerError
from llmkit.files.cache_dir import CACHE_HINT
from llmkit.params import ContextParams

if TYPE_CHECKING:
    from llmkit.engine.context import Context
    from llmkit.engine.generation.timings import Timings
    from llmkit.models.input_squares import InputSquares
    from llmkit.models.model import Model
    from llmkit.tokenizer import Tokenizer


@dataclass(frozen=True)
class Engine:
    """An open model. Without a tokenizer it takes and gives ids only."""

    model: "Model"
    tokenizer: "Tokenizer | None"
    ctx: "Context"


@contextmanager
def open_engine(
    model_name: str | None,
    params: ContextParams,
    timings: "Timings",
    *,
    needs_text: bool,
    overrides: Sequence[str] = (),
    fit: "Callable[[Model, Tokenizer | None], ContextParams] | None" = None,
    collector: "InputSquares | None" = None,
) -> "Iterator[Engine]":
    """The model that `-m` means, ready to decode; it is closed at the end.

    overrides: `--override-kv`'s texts. fit: gives the context's parameters where they depend on the model or on how
    it reads a text; `params` counts until then. collector: what sums up the inputs of matrices.

    Counts importing the engine and loading (or compiling) kernels as `kernels`, and the rest as `load`. A tokenizer
    that does not work is an error if the command needs texts, else None.
    """
    model, tokenizer = open_model(
        model_name, params.n_threads, needs_text=needs_text, overrides=overrides, timings=timings
    )
    from llmkit.engine.context import Context
    from llmkit.kernels.jit import loading_seconds

    began, kernels_s = time.perf_counter(), loading_seconds()
    if fit is not None:
        params = fit(model, tokenizer)
    with Context(model, params, collector) as ctx:
        kernels_s = loading_seconds() - kernels_s
        timings.kernels_s += kernels_s
        timings.load_s += time.perf_counter() - began - kernels_s
        _tell(model, ctx, params)
        yield Engine(model, tokenizer, ctx)


def open_model(
    model_name: str | None,
    n_threads: int,
    *,
    needs_text: bool = False,
    overrides: Sequence[str] = (),
    timings: "Timings | None" = None,
) -> "tuple[Model, Tokenizer | None]":
    """The same without a context: for commands that make several."""
    from llmkit.files.models_table import resolve_model
    from llmkit.files.overrides import parse_overrides

    values = parse_overrides(overrides)
    path = resolve_model(model_name)
    began = time.perf_counter()
    _announce_kernels()
    import llmkit.engine.context  # noqa: F401
    from llmkit.engine.thread_team import default_threads
    from llmkit.kernels.jit import loading_seconds
    from llmkit.models.model import load_model

    kernels_s = time.perf_counter() - began
    began, loaded_s = time.perf_counter(), loading_seconds()
    with _packing() as progress:
        model = load_model(
            path, n_threads=n_threads if n_threads > 0 else default_threads(), progress=progress, overrides=values
        )
    for key in model.added_keys:
        report.warning(f"--override-kv: the file has no {key}; it is added")
    if model.packed is not None and model.packed.not_kept:
        report.note(f"the weights are packed at every start: {model.packed.not_kept}")
    tokenizer = _tokenizer(model, needs_text)
    if timings is not None:
        loaded_s = loading_seconds() - loaded_s
        timings.kernels_s, timings.load_s = kernels_s + loaded_s, time.perf_counter() - began - loaded_s
    return model, tokenizer


def _announce_kernels() -> None:
    """Says what takes so long the first time, or each time if nothing can be kept."""
    from llmkit.kernels.kernel_cache import CACHE_FOLDER, can_keep, compiled_before

    if not compiled_before():
        if can_keep():
            report.note("compiling the kernels for this machine: once, for less than a minute")
        else:
            report.note(f"compiling the kernels, at every start: {CACHE_FOLDER} cannot be written to ({CACHE_HINT})")


@contextmanager
def _packing() -> Iterator[Callable[[int, int], None]]:
    """Gives what shows the progress of packing weights: nothing at all if there is nothing to pack."""
    with ExitStack() as stack:
        bars: list[report.Progress] = []
        n_shown = 0

        def show(n_done: int, n_total: int) -> None:
            nonlocal n_shown
            if not bars:
                bars.append(stack.enter_context(report.progress("packing the weights, once per model", n_total)))
            bars[0].update(n_done - n_shown)
            n_shown = n_done

        yield show


def _tokenizer(model: "Model", needed: bool) -> "Tokenizer | None":
    """The model's tokenizer; if it has none that works and none is needed, None."""
    try:
        return model.tokenizer
    except TokenizerError as error:
        if needed:
            raise
        report.note(f"ids are shown instead of text: {error.message}")
        return None


def _tell(model: "Model", ctx: "Context", params: ContextParams) -> None:
    """What was opened, for `-v`."""
    report.detail(f"model: {model.name}, {model.arch}, {model.file_bytes} bytes, {model.gguf.path}")
    if model.packed is not None:
        report.detail(f"weights: {model.packed.where}")
    report.detail(f"context: {ctx.n_ctx} tokens ({ctx.n_ctx_reason}), {ctx.n_threads} threads")
    batches = f"batches of {params.n_batch} in passes of {params.n_ubatch}"
    layout = ctx.kv.layout
    kept = ((params.type_k, layout.n_rot_k), (params.type_v, layout.n_rot_v))
    keys, values = (f"{name} (rotated)" if n_rot else name for name, n_rot in kept)
    report.detail(f"{batches}, keys in {keys}, values in {values}")
