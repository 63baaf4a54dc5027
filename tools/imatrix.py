"""`llmkit imatrix`: which columns of a model's matrices a text needs most, for `llmkit quantize --imatrix`.

Owns the options, which are llama-imatrix's, and the order of things. Sums are taken by the engine and added up by
llmkit/files/imatrix_sums.py.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmkit import report
from llmkit.errors import NumericsError, UsageError
from llmkit.params import ContextParams

from . import _evaluate_options as options
from ._engine import Engine, open_engine
from ._interrupt import Interruption
from ._options import (
    JsonOption,
    ModelOption,
    OverrideOption,
    ThreadsOption,
    TypeKOption,
    TypeVOption,
    UbatchOption,
)
from ._running import Running
from ._text import read_source

if TYPE_CHECKING:
    from llmkit.evaluate.windows import Windows
    from llmkit.files.imatrix_file import Imatrix
    from llmkit.models.input_squares import InputSquares

EXIT_INTERRUPTED = 130
FORMATS = ("gguf", "dat")


@dataclass(frozen=True)
class ImatrixRequest:
    """What to collect, where to. in_files: what is added to. n_chunks, output_frequency, save_frequency in chunks."""

    model: str | None = None
    file: str | None = None
    output: str = "imatrix.gguf"
    is_legacy: bool = False
    output_frequency: int = 10
    save_frequency: int = 0
    process_output: bool = False
    score: bool = True
    first_chunk: int = 0
    n_chunks: int = -1
    parse_special: bool = False
    in_files: Sequence[str] = ()
    n_ctx: int = options.N_CTX
    context: ContextParams = field(default_factory=ContextParams)
    overrides: Sequence[str] = ()
    as_json: bool = False


def imatrix_cli(
    model: ModelOption = None,
    file: Annotated[
        str | None, typer.Option("-f", "--file", metavar="FILE", help="The text; - is stdin, as is a pipe.")
    ] = None,
    output: Annotated[
        str, typer.Option("-o", "--output", "--output-file", metavar="FILE", help="The file to write.")
    ] = "imatrix.gguf",
    output_format: Annotated[
        str, typer.Option("--output-format", metavar="gguf|dat", help="Its format; dat is llama.cpp's older one.")
    ] = "gguf",
    output_frequency: Annotated[
        int,
        typer.Option("-ofreq", "--output-frequency", metavar="N", help="Write it every N chunks; 0: at the end alone."),
    ] = 10,
    save_frequency: Annotated[
        int, typer.Option("--save-frequency", metavar="N", help="Keep a copy, FILE.at_CHUNK, every N chunks; 0: none.")
    ] = 0,
    process_output: Annotated[bool, typer.Option("--process-output", help="Collect for output.weight too.")] = False,
    score: Annotated[bool, typer.Option("--ppl/--no-ppl", help="Compute the perplexity as well.")] = True,
    first_chunk: Annotated[
        int, typer.Option("--chunk", "--from-chunk", metavar="N", help="Begin with chunk N of the text, from 0.")
    ] = 0,
    n_chunks: options.ChunksOption = -1,
    parse_special: Annotated[
        bool, typer.Option("--parse-special", help="Special tokens written in the text are tokens.")
    ] = False,
    show_statistics: Annotated[
        bool, typer.Option("--show-statistics", help="Show what the --in-file say of the layers, and do nothing else.")
    ] = False,
    in_file: Annotated[
        list[str] | None,
        typer.Option("--in-file", metavar="FILE", help="Add to the sums in FILE; several: again, or ,"),
    ] = None,
    n_ctx: options.ChunkSizeOption = None,
    n_batch: options.BatchOption = 2048,
    n_ubatch: UbatchOption = 512,
    n_threads: ThreadsOption = 0,
    type_k: TypeKOption = "f16",
    type_v: TypeVOption = "f16",
    overrides: OverrideOption = None,
    as_json: JsonOption = False,
) -> int:
    """Collect an importance matrix: how large the inputs of each matrix are while a model reads a text.

    The text comes from -f or through a pipe. With --in-file and no -f, files are added up and no model is needed.
    """
    if output_format not in FORMATS:
        raise UsageError(f"--output-format is {output_format!r}; gguf or dat is expected")
    files = [name for names in in_file or [] for name in names.split(",") if name]
    if show_statistics:
        return _show_statistics(files, as_json)
    context = ContextParams(0, n_batch, n_ubatch, n_threads, type_k, type_v)
    request = ImatrixRequest(
        model, file, output, output_format == "dat", output_frequency, save_frequency, process_output, score,
        first_chunk, n_chunks, parse_special, files, options.N_CTX if n_ctx is None else n_ctx, context,
        overrides or [], as_json,
    )  # fmt: skip
    return imatrix(request)


def imatrix(request: ImatrixRequest) -> int:
    """Collects or adds up, and writes; the exit code: 0, or 130 if interrupted, with the whole chunks written."""
    from llmkit.files.atomic import check_can_write
    from llmkit.files.imatrix_sums import read_sums

    _check(request)
    check_can_write(request.output)
    base = [read_sums(name, request.n_ctx) for name in request.in_files]
    if request.in_files and request.file is None:
        return _merge(request, base)
    return _collect(request, base)


def _check(request: ImatrixRequest) -> None:
    """UsageError for what cannot be, before anything is read."""
    from llmkit.evaluate.windows import check_sizes

    check_sizes(request.n_ctx, request.n_chunks)
    ranges = {"--chunk": request.first_chunk, "-ofreq": request.output_frequency}
    for name, value in (ranges | {"--save-frequency": request.save_frequency}).items():
        if value < 0:
            raise UsageError(f"{name} is {value}; at least 0 is expected")
    for source in filter(os.path.exists, filter(None, (request.model, request.file))):
        if os.path.exists(request.output) and os.path.samefile(source, request.output):
            raise UsageError(f"-o {request.output} would overwrite what is read", "Give another name.")


def _write(request: ImatrixRequest, imatrix: "Imatrix", path: str) -> None:
    from llmkit.files.imatrix_file import write_imatrix

    write_imatrix(path, replace(imatrix, is_legacy=request.is_legacy))


# -- files alone ------------------------------------------------------------------------------------------------------


def _merge(request: ImatrixRequest, base: "list[Imatrix]") -> int:
    from llmkit.files.imatrix_sums import add_up

    sums = add_up(base, request.in_files, base[0].chunk_size or request.n_ctx)
    _write(request, sums, request.output)
    numbers = {
        "output": request.output,
        "n_files": len(base),
        "n_entries": len(sums.entries),
        "n_chunks": sums.n_chunks,
    }
    if request.as_json:
        report.result_json(numbers)
    else:
        report.result(
            f"{request.output}: {len(sums.entries)} entries of {sums.n_chunks} chunks, from {len(base)} files"
        )
    return 0


def _show_statistics(files: list[str], as_json: bool) -> int:
    from llmkit.files.imatrix_statistics import layer_statistics, tensor_statistics
    from llmkit.files.imatrix_sums import read_sums

    from ._imatrix_text import layer_table, statistics_json, tensor_table

    if not files:
        raise UsageError("--show-statistics needs --in-file FILE", "Name the importance matrix.")
    shown: list[dict[str, Any]] = []
    for name in files:
        sums = read_sums(name, options.N_CTX)
        tensors, layers = tensor_statistics(sums), layer_statistics(sums)
        shown.append(
            {"file": name, "tensors": [*map(statistics_json, tensors)], "layers": [*map(statistics_json, layers)]}
        )
        if not as_json:
            report.result(f"{tensor_table(name, tensors)}\n{layer_table(name, layers)}")
    if as_json:
        report.result_json({"files": shown})
    return 0


# -- a text -----------------------------------------------------------------------------------------------------------


def _collect(request: ImatrixRequest, base: "list[Imatrix]") -> int:
    from llmkit.engine.generation.timings import Timings
    from llmkit.evaluate.text import decode_text, encode_text
    from llmkit.models.input_squares import InputSquares

    raw, place = read_source(request.file)
    text = decode_text(raw, place)
    n_seq = options.n_together(min(request.context.n_batch, request.context.n_ubatch), request.n_ctx)
    params = options.holding(request.context, n_seq, request.n_ctx)
    collector = InputSquares(request.process_output)
    with open_engine(
        request.model, params, Timings(), needs_text=True, overrides=request.overrides, collector=collector
    ) as engine:
        assert engine.tokenizer is not None, "the engine was opened for texts"
        windows = _windows(request, engine, encode_text(engine.tokenizer, text, request.parse_special))
        _warn(request, engine, collector)
        return _Collection(request, engine, windows, n_seq, collector, base, place).run()


def _windows(request: ImatrixRequest, engine: Engine, tokens: Any) -> "Windows":
    """The chunks from the first that is wanted on."""
    from llmkit.evaluate.errors import ShortTextError
    from llmkit.evaluate.windows import chunks

    assert engine.tokenizer is not None
    skipped = request.first_chunk * request.n_ctx
    if skipped and tokens.size < skipped + 2 * request.n_ctx:
        message = f"the text has {tokens.size} tokens; --chunk {request.first_chunk} leaves too few of them"
        raise ShortTextError(message, f"two chunks of {request.n_ctx} tokens are needed")
    bos = engine.tokenizer.bos_id if engine.tokenizer.add_bos else None
    return chunks(tokens[skipped:], request.n_ctx, request.n_chunks, bos)


def _warn(request: ImatrixRequest, engine: Engine, collector: "InputSquares") -> None:
    n_train = engine.model.config.n_ctx_train
    if request.n_ctx > n_train:
        report.warning(f"the model was trained on {n_train} tokens, and the chunks have {request.n_ctx}")
    if request.process_output and not collector.has_output:
        report.warning("--process-output: the model has no output.weight of its own; nothing is collected for it")


@dataclass
class _Collection:
    """One run over a text. `_sums` are those of whole chunks, ready to be written."""

    request: ImatrixRequest
    engine: Engine
    windows: "Windows"
    n_seq: int
    collector: "InputSquares"
    base: "list[Imatrix]"
    place: str
    _sums: "Imatrix | None" = None
    _saved: bool = False

    def run(self) -> int:
        """Collects, writes at intervals and at the end, shows; the exit code."""
        from llmkit.evaluate.collect import run_windows
        from llmkit.evaluate.perplexity import Estimate

        from ._perplexity_text import chunk_text

        request, windows = self.request, self.windows
        self._add_up(0)  # files of another model are refused before long work
        self._sums = None
        report.note(f"{windows.n} chunks of {windows.length} tokens, {min(self.n_seq, windows.n)} chunks together")
        estimate, history = Estimate(), list[float]()
        with Interruption() as stop, Running("imatrix", "chunks", windows.n, self.n_seq, request.as_json) as running:
            for group in run_windows(
                self.engine.ctx, windows, self.n_seq, score=request.score, all_outputs=self.collector.has_output,
                stop=stop,
            ):  # fmt: skip
                n_before = running.n_done
                for nll in group:
                    if request.score:
                        estimate.add(nll)
                        history.append(estimate.ppl)
                    running.step(chunk_text(running.n_done + 1, estimate) if request.score else "")
                self._add_up(running.n_done)
                self._save(n_before, running.n_done)
            seconds = running.seconds
            if self._sums is not None and not self._saved:
                _write(request, self._sums, request.output)
        self._show(running, estimate if request.score else None, history, seconds)
        return 0 if running.n_done == windows.n else EXIT_INTERRUPTED

    def _add_up(self, n_done: int) -> None:
        """Takes the sums as they are now. NumericsError where one is no finite number."""
        from llmkit.files.imatrix_file import Imatrix, ImatrixEntry
        from llmkit.files.imatrix_sums import add_up

        for name, squares in self.collector.squares.items():
            if not squares.is_finite:
                hint = "the model's values overflow; try f32 for -ctk and -ctv"
                raise NumericsError(f"the inputs of {name} are not finite numbers", hint)
        entries = {name: ImatrixEntry(*squares.float32()) for name, squares in self.collector.squares.items()}
        dataset = os.fsencode(self.place).decode(errors="replace")
        new = Imatrix(entries, [dataset], n_done, self.request.n_ctx)
        place = self.request.model or "the model"
        self._sums = add_up([*self.base, new], [*self.request.in_files, place], self.request.n_ctx)
        self._saved = False

    def _save(self, n_before: int, n_done: int) -> None:
        """Writes the file, or a copy, where a multiple of its interval lies in n_before + 1 .. n_done."""
        assert self._sums is not None
        every, copy_every = self.request.output_frequency, self.request.save_frequency
        if every and n_done // every > n_before // every:
            _write(self.request, self._sums, self.request.output)
            self._saved = True
        if copy_every and n_done // copy_every > n_before // copy_every:
            _write(self.request, self._sums, f"{self.request.output}.at_{self._sums.n_chunks}")

    def _show(self, running: Running, estimate: Any, history: list[float], seconds: float) -> None:
        from ._perplexity_text import estimate_json, final_line

        request, n_done = self.request, running.n_done
        n_tokens = n_done * self.windows.length
        rate = n_tokens / seconds if seconds > 0 else 0.0
        if request.as_json:
            numbers: dict[str, Any] = {
                "model": self.engine.model.name, "output": request.output if n_done else None,
                "n_entries": len(self.collector.squares), "n_ctx": self.windows.length, "n_chunks": self.windows.n,
                "n_chunks_done": n_done, "stop_reason": "done" if n_done == self.windows.n else "interrupted",
                "n_tokens": n_tokens, "seconds": round(seconds, 3), "tokens_per_second": round(rate, 2),
            }  # fmt: skip
            scores = estimate_json(estimate) | {"chunks": history} if history else {}
            report.result_json(numbers | scores)
        elif history:
            report.result("\n" + final_line(estimate, n_done, self.windows.n))
        report.note(f"{n_tokens} tokens in {seconds:.2f} s: {rate:.1f} t/s")
        if n_done < self.windows.n:
            kept = f"; they are in {request.output}" if n_done else "; nothing was written"
            report.note(f"interrupted after {n_done} of {self.windows.n} chunks{kept}")
        else:
            report.note(f"{request.output}: {len(self.collector.squares)} entries")
