"""What the Tab key offers, and how a shell is told to ask for it.

Owns the answers: commands, options, and the names of models. The protocols of the shells are Typer's. Imports no
engine: a key press must be answered at once.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmkit import report
from llmkit.errors import OutputError, UsageError
from llmkit.shell.groups import GROUPS, words

if TYPE_CHECKING:
    from typer.core import TyperCommand

VARIABLE = "_LLMKIT_COMPLETE"
SHELLS = ("bash", "zsh", "fish")
INSTALL, SHOW = "--install-completion", "--show-completion"
FIRST_OPTIONS = ("--help", "--version", INSTALL, SHOW)


def script_or_install(option: str, args: Sequence[str]) -> int:
    """`llmkit --show-completion [SHELL]` prints the script; `--install-completion [SHELL]` puts it in its place."""
    from typer._completion_shared import _get_shell_name, get_completion_script, install

    shell = args[0] if args else _get_shell_name()
    if shell not in SHELLS or len(args) > 1:
        raise UsageError(f"{option}: the shell is {shell or 'unknown'}; one of {', '.join(SHELLS)} is expected")
    if option == SHOW:
        report.result(get_completion_script(prog_name="llmkit", complete_var=VARIABLE, shell=shell))
        return 0
    try:
        _, path = install(shell=shell, prog_name="llmkit", complete_var=VARIABLE)
    except OSError as exc:
        raise OutputError(f"cannot install the completion: {exc.strerror}: {exc.filename}") from exc
    report.result(str(path))
    report.note(f"{shell} completes the words of llmkit as soon as it is started anew")
    return 0


def complete(commands: Mapping[str, str], build: "Callable[[str], TyperCommand]") -> int:
    """Answers a shell that asks through its variables; commands: the names and what they are for.

    build: makes the parser of one command, which is imported only when its options are asked for.
    """
    from typer import _completion_classes as protocols

    protocols._sanitize_help_text = lambda text: text  # ours has no markup, and taking it out would load rich
    classes = {"bash": protocols.BashComplete, "zsh": protocols.ZshComplete, "fish": protocols.FishComplete}
    instruction, _, shell = os.environ[VARIABLE].partition("_")
    if instruction != "complete" or shell not in classes:
        raise UsageError(f"{VARIABLE} is {os.environ[VARIABLE]!r}", "it is for shells; see --install-completion")
    completer = _completer(classes[shell], commands, build)
    report.result(completer(None, {}, "llmkit", VARIABLE).complete())
    return 0


def _completer(base: Any, commands: Mapping[str, str], build: "Callable[[str], TyperCommand]") -> Any:
    """Typer's class for a shell, with our answers."""
    from typer._click.shell_completion import CompletionItem

    class Completer(base):  # type: ignore[misc]
        cut = ""

        def get_completion_args(self) -> tuple[list[str], str]:
            args, incomplete = super().get_completion_args()
            if self.name == "bash":
                args, incomplete, self.cut = with_address(args, incomplete)
            return args, incomplete

        def format_completion(self, item: Any) -> str:
            text: str = super().format_completion(item)
            return text.removeprefix(self.cut)

        def get_completions(self, args: list[str], incomplete: str) -> list[Any]:
            if args and args[0] in GROUPS and len(args) > 1:
                args = [f"{args[0]}-{args[1]}", *args[2:]]
            if not args or args[0] in GROUPS:
                items = first_words(commands) if not args else second_words(commands, args[0])
                return [CompletionItem(n, help=about or None) for n, about in items.items() if n.startswith(incomplete)]
            if args[0] in (INSTALL, SHOW):
                return [CompletionItem(name) for name in SHELLS if name.startswith(incomplete)]
            if args[0] not in commands:
                return []
            self.cli = build(args[0])
            found: list[Any] = super().get_completions(args[1:], incomplete)
            return found

    return Completer


def first_words(commands: Mapping[str, str]) -> dict[str, str]:
    """What may come first, and what it is about: commands, of those of two words the first, options."""
    firsts = {words(name).partition(" ")[0]: about for name, about in commands.items()}
    return {
        **firsts,
        **{name: about for name, about in GROUPS.items() if name in firsts},
        **dict.fromkeys(FIRST_OPTIONS, ""),
    }


def second_words(commands: Mapping[str, str], group: str) -> dict[str, str]:
    """What may come behind the first of two words."""
    pairs = {words(name): about for name, about in commands.items()}
    return {pair.removeprefix(f"{group} "): about for pair, about in pairs.items() if pair.startswith(f"{group} ")}


def with_address(args: list[str], incomplete: str) -> tuple[list[str], str, str]:
    """Bash takes hf:x for three words, and the last of them for the one to be completed: the words as they were meant,
    and what is to be left out of the answers."""
    parts = [*args, *([incomplete] if incomplete != ":" else [":", ""])]
    if len(parts) > 2 and parts[-2] == ":" and parts[-3] in ("hf", "http", "https"):
        return parts[:-3], f"{parts[-3]}:{parts[-1]}", f"{parts[-3]}:"
    return args, incomplete, ""


def model_names(ctx: Any, args: list[str], incomplete: str) -> list[str]:
    """What -m takes: the names that there are, the pulled models of the hub, files that may be models, and folders."""
    from llmkit.files.models_table import MODELS

    names = [*MODELS, *(f"hf:{name}" for name in hub_names(ctx, args, ""))]
    return [name for name in [*names, *_files(incomplete)] if name.startswith(incomplete)]


def hub_names(ctx: Any, args: list[str], incomplete: str) -> list[str]:
    """USER/REPO of what was pulled from the hub."""
    from llmkit.files.cache_dir import cache_root

    found = []
    for folder in sorted((cache_root() / "models").glob("hf--*--*")):
        if next((path for path in folder.rglob("*.gguf") if ".partial" not in path.parts), None) is not None:
            found.append(folder.name.removeprefix("hf--").replace("--", "/", 1))
    return [name for name in found if name.startswith(incomplete)]


def _files(incomplete: str) -> Iterator[str]:
    """Files with the suffix of models, and folders, which end with a slash."""
    folder, _, start = incomplete.rpartition("/")
    place = f"{folder}/" if "/" in incomplete else ""
    try:
        inside = sorted(Path(place or ".").expanduser().iterdir())
    except OSError:
        return
    for path in inside:
        if path.name.startswith(start) and (start.startswith(".") or not path.name.startswith(".")):
            if path.is_dir():
                yield f"{place}{path.name}/"
            elif path.suffix == ".gguf":
                yield f"{place}{path.name}"
