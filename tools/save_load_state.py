"""`llmkit save-load-state`: whether a model's sequences survive being saved, loaded, copied and removed.

Owns the options and the looks. The checks themselves are llmkit/evaluate/state_checks.
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmkit import report
from llmkit.errors import LlmkitError, UsageError
from llmkit.params import ContextParams, check_range

from . import _options as options
from ._engine import open_model

if TYPE_CHECKING:
    from llmkit.evaluate.state_checks.run import Result

EXIT_DIFFERENT = 2
TEXT = (
    "The quick brown fox jumps over the lazy dog. A session that is saved and comes back must go on as if it had never "
    "stopped: the same tokens, the same positions, the same keys and values, bit for bit. What is copied must be equal "
    "to what it was copied from, and what is removed must leave no trace in what stays. Once upon a time"
)


@dataclass(frozen=True)
class StateRequest:
    """Which models to check, with which prompt."""

    model: str | None = None
    folder: str | None = None
    prompt: str | None = None
    file: str | None = None
    n_predict: int = 16
    context: ContextParams = field(default_factory=ContextParams)
    as_json: bool = False


def save_load_state_cli(
    model: options.ModelOption = None,
    folder: Annotated[
        str | None, typer.Option("--models", metavar="DIR", help="Check each .gguf file in DIR; a row per model.")
    ] = None,
    prompt: options.PromptOption = None,
    file: options.FileOption = None,
    n_predict: Annotated[
        int, typer.Option("-n", "--n-predict", metavar="N", help="Tokens that are chosen behind the prompt.")
    ] = 16,
    n_threads: options.ThreadsOption = 0,
    n_batch: options.BatchOption = 2048,
    n_ubatch: options.UbatchOption = 512,
    type_k: options.TypeKOption = "f16",
    type_v: options.TypeVOption = "f16",
    swa_full: options.SwaFullOption = False,
    as_json: options.JsonOption = False,
) -> int:
    """Save, load, copy and remove sequences, and compare what comes behind them bit for bit; a row per check.

    Exit code 0: no difference, 2: something differs.
    """
    context = ContextParams(0, n_batch, n_ubatch, n_threads, type_k, type_v, swa_full=swa_full)
    return save_load_state(StateRequest(model, folder, prompt, file, n_predict, context, as_json))


def save_load_state(request: StateRequest) -> int:
    """Checks one model or a folder of them; the exit code."""
    check_range("n_predict", request.n_predict, 2, None, "something must come behind what is saved")
    text = _text(request)
    if request.folder is None:
        results = _show_one(request, text)
    else:
        results = _show_folder(request, Path(request.folder), text)
    return EXIT_DIFFERENT if any(result.failed for result in results) else 0


def _text(request: StateRequest) -> str:
    from ._prompt import read_prompt

    if request.prompt is None and request.file is None:
        return TEXT
    return read_prompt(request.prompt, request.file, escape=True)


def _results(request: StateRequest, model_name: str | None, text: str) -> "tuple[str, list[Result]]":
    """The model's name and what each check found, with word of how far it is."""
    model, tokenizer = open_model(model_name, request.context.n_threads)
    from llmkit.evaluate.state_checks.checks import CHECKS
    from llmkit.evaluate.state_checks.run import run_checks

    # A model without a tokenizer gets ids that any vocabulary has.
    prompt = tokenizer.encode(text) if tokenizer else [1 + i % (model.config.n_vocab - 1) for i in range(100)]
    if len(prompt) < 2:
        raise UsageError("the prompt has less than two tokens", "Give a longer one with -p or -f.")
    found = []
    with report.progress(model.name, len(CHECKS), "check") as bar:
        for result in run_checks(model, prompt, request.n_predict, request.context):
            found.append(result)
            bar.update(1)
    return model.name, found


def _show_one(request: StateRequest, text: str) -> "list[Result]":
    name, results = _results(request, request.model, text)
    if request.as_json:
        report.result_json(_as_json(name, results))
    else:
        report.result_table([(r.name, r.outcome, r.detail) for r in results], ("check", "result", "what was seen"))
    return results


def _show_folder(request: StateRequest, folder: Path, text: str) -> "list[Result]":
    """A row per model, a column per check; what failed is told below."""
    if request.model is not None:
        raise UsageError("there are models from -m and from --models", "Give one of them.")
    paths = sorted(folder.glob("*.gguf")) if folder.is_dir() else []
    if not paths:
        raise UsageError(f"{folder} holds no .gguf files", "Name a folder that does.")
    rows, lines, names = list[list[str]](), list[dict[str, Any]](), list[str]()
    everything: list[Result] = []
    for path in paths:
        try:
            _, results = _results(request, str(path), text)
        except LlmkitError as error:
            report.warning(f"{path.name}: {error.message}")
            continue
        names = [result.name for result in results]
        rows.append([path.name, *(result.outcome for result in results)])
        lines.append(_as_json(path.name, results))
        everything += results
        for result in results:
            if result.failed:
                report.note(f"{path.name}: {result.name}: {result.detail}")
    if not rows:
        raise UsageError(f"none of the {len(paths)} models in {folder} runs")
    if request.as_json:
        report.result_json(lines)
    else:
        report.result_table(rows, ("model", *names))
    return everything


def _as_json(name: str, results: "list[Result]") -> dict[str, Any]:
    return {"model": name, "checks": [{**asdict(r)} for r in results], "different": any(r.failed for r in results)}
