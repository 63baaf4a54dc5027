"""The entry point: finds the command that was asked for, runs it, and turns every way of ending into an exit code.

Owns the table of commands and the exit codes: 0 done, 1 user error, 2 ran but the answer is negative, 130 interrupted.
Knows nothing about what a command does, and imports neither Typer nor a command's module before one is chosen, so that
`llmkit --help` is quick.
"""

import importlib
import io
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from llmkit import __version__, report
from llmkit.errors import LlmkitError, UsageError

EXIT_ERROR = 1
EXIT_INTERRUPTED = 130


@dataclass(frozen=True)
class Command:
    """A command's name, the function that declares its options for Typer, and its line in `llmkit --help`.

    The function returns None or its exit code.
    """

    name: str
    module: str
    attribute: str
    help: str


COMMANDS: dict[str, Command] = {
    command.name: command
    for command in (
        Command("run", "llmkit.tools.run", "run_cli", "Complete a prompt; the text streams to stdout."),
        Command("tokenize", "llmkit.tools.tokenize", "tokenize_cli", "Turn text from stdin into token ids."),
        Command("bench", "llmkit.tools.bench", "bench_cli", "Measure the speed of models, or the machine's ceilings."),
        Command(
            "batched-bench",
            "llmkit.tools.batched_bench",
            "batched_bench_cli",
            "Measure the speed of many sequences at once.",
        ),
        Command("passkey", "llmkit.tools.passkey", "passkey_cli", "Find a number that is hidden in a long text."),
        Command("perplexity", "llmkit.tools.perplexity", "perplexity_cli", "Measure how well a model predicts a text."),
        Command("compare", "llmkit.tools.compare", "compare_cli", "Compare models over a text: size, quality, speed."),
        Command("inspect", "llmkit.tools.inspect", "inspect_cli", "Show what is in a model file, and whether it runs."),
        Command("quantize", "llmkit.tools.quantize", "quantize_cli", "Make a model file smaller; split or join files."),
        Command("imatrix", "llmkit.tools.imatrix", "imatrix_cli", "Collect an importance matrix for quantize."),
        Command("pull", "llmkit.tools.pull", "pull_cli", "Fetch a named model, or list or remove the fetched ones."),
        Command("cache", "llmkit.tools.cache", "cache_cli", "Show what llmkit keeps for you, and make room."),
    )
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run `llmkit ARGV...` (default: the process's arguments) and return the exit code; nothing is raised."""
    args = list(sys.argv[1:] if argv is None else argv)
    return guarded(lambda: _dispatch(args))


def guarded(work: Callable[[], int]) -> int:
    """Call `work` and return its exit code, or say what ended it on stderr and return the code for that."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        code = work()
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except BaseException as exc:
        return _exit_code(exc)


def _dispatch(args: list[str]) -> int:
    first = args[0] if args else ""
    if first in ("-h", "--help", ""):
        report.result(_overview())
        return 0 if first else EXIT_ERROR
    if first in ("-V", "--version"):
        report.result(f"llmkit {__version__}")
        return 0
    if first not in COMMANDS:
        kind = "option" if first.startswith("-") else "command"
        close = get_close_matches(first, COMMANDS, n=1)
        hint = f"did you mean `llmkit {close[0]}`? " if close else ""
        raise UsageError(f"there is no {kind} {first!r}", f"{hint}`llmkit --help` lists the commands")
    return _run(COMMANDS[first], args[1:])


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {command.name:<{width}}  {command.help}" for command in COMMANDS.values()]
    return "\n".join(
        [
            "Usage: llmkit COMMAND [OPTIONS]",
            "",
            "A toolkit for GGUF language models on the CPU.",
            "",
            "Commands:",
            *lines,
            "",
            "`llmkit COMMAND --help` shows the options of one command, `llmkit --version` the version.",
        ]
    )


def _run(command: Command, args: list[str]) -> int:
    """Import the command's module, let Typer read its options, and call it.

    Typer's own main loop is left out: it would end with 2 on a wrong option, and meet a closed pipe before we do.
    """
    import typer
    from typer.main import get_command

    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    # An option is found by its name with dashes, however it was typed: --top_k and --top-k, as in llama.cpp.
    settings = {"help_option_names": ["-h", "--help"], "token_normalize_func": lambda name: name.replace("_", "-")}
    app.command(command.name, context_settings=settings)(
        getattr(importlib.import_module(command.module), command.attribute)
    )
    parser = get_command(app)
    try:
        with parser.make_context(f"llmkit {command.name}", args) as context:
            code = parser.invoke(context)
    except typer.Exit as exc:
        return exc.exit_code
    except typer.TyperException as exc:
        hint = f"`llmkit {command.name} --help` shows the options"
        if "unexpected extra argument" in exc.format_message() and ".gguf" in exc.format_message():
            hint = f"a model is given with -m; {hint}"
        raise UsageError(exc.format_message(), hint) from exc
    return code if isinstance(code, int) else 0


def _exit_code(exc: BaseException) -> int:
    """Say on stderr what ended the command, in one line and a hint, and choose the exit code."""
    if isinstance(exc, SystemExit):
        return exc.code if isinstance(exc.code, int) else EXIT_ERROR
    if isinstance(exc, BrokenPipeError):
        _drop_stdout()
        return 0
    if isinstance(exc, KeyboardInterrupt):
        report.note("interrupted")
        return EXIT_INTERRUPTED
    if os.environ.get("LLMKIT_DEBUG", "") not in ("", "0"):
        report.warning("".join(traceback.format_exception(exc)).rstrip())
    report.error(*_describe(exc))
    return exc.exit_code if isinstance(exc, LlmkitError) else EXIT_ERROR


def _describe(exc: BaseException) -> tuple[str, str]:
    if isinstance(exc, LlmkitError):
        return exc.message, exc.hint
    if isinstance(exc, MemoryError):
        wanted = f": {exc}" if str(exc) else ""
        return f"out of memory{wanted}", "use a smaller model, or a smaller context (-c) or batch (-b)"
    if isinstance(exc, OSError) and exc.strerror:
        return f"{exc.strerror}{f': {exc.filename}' if exc.filename else ''}", ""
    where = traceback.extract_tb(exc.__traceback__)[-1:]
    place = f" in {os.path.basename(where[0].filename)}:{where[0].lineno}" if where else ""
    message = f"internal error: {type(exc).__name__}: {exc}{place}"
    return message, "this is a bug in llmkit; LLMKIT_DEBUG=1 shows the traceback"


def _drop_stdout() -> None:
    """Send what is still buffered for stdout nowhere, or the interpreter would complain once more at its end."""
    try:
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        os.close(devnull)
    except (OSError, ValueError, AttributeError):
        pass
