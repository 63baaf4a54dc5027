"""The entry point: finds the command that was asked for, runs it, and turns every way of ending into an exit code.

Owns the table of commands and the exit codes: 0 done, 1 user error, 2 ran but the answer is negative, 130 interrupted
(143 by SIGTERM, 129 by a closed terminal). Knows nothing about what a command does, and imports neither Typer nor a
command's module before one is chosen, so that `llmkit --help` is quick. How a command line is read is llmkit/shell's.
"""

import importlib
import io
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from llmkit import report
from llmkit.errors import LlmkitError, UsageError
from llmkit.shell import signals
from llmkit.shell.groups import GROUPS, words

if TYPE_CHECKING:
    from llmkit.shell.command import BuiltCommand

EXIT_ERROR = 1

COMPLETION_VARIABLE = "_LLMKIT_COMPLETE"
"""Set by a shell that asks what could come next."""


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
        Command("serve", "llmkit.tools.serve", "serve_cli", "Serve a model over HTTP, as llama.cpp and OpenAI do."),
        Command("tokenize", "llmkit.tools.tokenize", "tokenize_cli", "Turn text from stdin into token ids."),
        Command("bench", "llmkit.tools.bench", "bench_cli", "Measure the speed of models, or the machine's ceilings."),
        Command(
            "batched-bench",
            "llmkit.tools.batched_bench",
            "batched_bench_cli",
            "Measure the speed of many sequences at once.",
        ),
        Command("state-save", "llmkit.tools.state", "save_cli", "Compute a prompt once and save its state."),
        Command("state-load", "llmkit.tools.state", "load_cli", "Go on from a saved state."),
        Command("state-info", "llmkit.tools.state_files", "info_cli", "Show what a state file says of itself."),
        Command("state-verify", "llmkit.tools.state_files", "verify_cli", "Compare the checksums of state files."),
        Command("state-diff", "llmkit.tools.state_files", "diff_cli", "Compare two state files."),
        Command("state-ls", "llmkit.tools.state_files", "ls_cli", "List the state files in a folder."),
        Command("state-convert", "llmkit.tools.state_convert", "convert_cli", "Convert states to or from llama.cpp."),
        Command(
            "save-load-state",
            "llmkit.tools.save_load_state",
            "save_load_state_cli",
            "Check that saved and copied sequences go on bit for bit.",
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
    with signals.as_ctrl_c():
        try:
            signals.State.working = True
            signals.interrupt_if_late()
            code = work()
            if sys.stdout is not None:
                sys.stdout.flush()
            signals.State.working = False
        except BaseException as exc:
            signals.State.working = False
            code = _exit_code(exc)
        report.close_log()
        return signals.exit_code(code)


def _dispatch(args: list[str]) -> int:
    if COMPLETION_VARIABLE in os.environ:
        from llmkit.shell.completion import complete

        return complete({command.name: command.help for command in COMMANDS.values()}, lambda name: _build(name).parser)
    first = args[0] if args else ""
    if first in ("-h", "--help", ""):
        report.result(_overview())
        return 0 if first else EXIT_ERROR
    if first in ("-V", "--version") or args[1:] == ["--version"]:
        from llmkit.shell.version import version_text

        report.result(version_text())
        return 0
    if first in ("--install-completion", "--show-completion"):
        from llmkit.shell.completion import script_or_install

        return script_or_install(first, args[1:])
    if first in GROUPS:
        first, args = _in_group(first, args)
        if not first:
            return 0
    if first not in COMMANDS:
        kind = "option" if first.startswith("-") else "command"
        close = get_close_matches(first, COMMANDS, n=1)
        hint = f"did you mean `llmkit {close[0]}`? " if close else ""
        raise UsageError(f"there is no {kind} {first!r}", f"{hint}`llmkit --help` lists the commands")
    return _run(COMMANDS[first], args[1:])


def _in_group(group: str, args: list[str]) -> tuple[str, list[str]]:
    """The command that two words mean, and all words with these two as one; no command, when the group was shown."""
    inside = [command for command in COMMANDS.values() if command.name.startswith(f"{group}-")]
    second = args[1] if len(args) > 1 else ""
    if second in ("-h", "--help"):
        lines = [f"  {words(command.name)}  {command.help}" for command in inside]
        report.result("\n".join([f"Usage: llmkit {group} COMMAND [OPTIONS]", "", "Commands:", *lines]))
        return "", args
    names = [command.name.removeprefix(f"{group}-") for command in inside]
    if second not in names:
        close = get_close_matches(second, names, n=1)
        hint = f"did you mean `llmkit {group} {close[0]}`? " if close else ""
        what = f"no command {second!r} in `llmkit {group}`" if second else f"`llmkit {group}` needs a command"
        raise UsageError(f"there is {what}" if second else what, f"{hint}there are {', '.join(names)}")
    return f"{group}-{second}", [f"{group}-{second}", *args[2:]]


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {words(command.name):<{width}}  {command.help}" for command in COMMANDS.values()]
    return "\n".join(
        [
            "Usage: llmkit COMMAND [OPTIONS]",
            "",
            "A toolkit for GGUF language models on the CPU.",
            "",
            "Commands:",
            *lines,
            "",
            "`llmkit COMMAND --help` shows the options of one command, `llmkit --version` the versions.",
            "`llmkit --install-completion [bash|zsh|fish]` lets Tab complete them.",
        ]
    )


def _build(name: str) -> "BuiltCommand":
    """The parser of a command, with the options that all have; imports the command's module and Typer."""
    from llmkit.shell.command import build_command

    command = COMMANDS[name]
    return build_command(name, getattr(importlib.import_module(command.module), command.attribute))


def _run(command: Command, args: list[str]) -> int:
    from llmkit.shell.command import run_command

    return run_command(_build(command.name), args, list(COMMANDS), _build)


def _exit_code(exc: BaseException) -> int:
    """Say on stderr what ended the command, in one line and a hint, and choose the exit code."""
    if isinstance(exc, SystemExit):
        return exc.code if isinstance(exc.code, int) else EXIT_ERROR
    if isinstance(exc, BrokenPipeError):
        _drop_stdout()
        return 0
    if isinstance(exc, KeyboardInterrupt):
        report.note(signals.word())
        return signals.EXIT_INTERRUPTED
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
