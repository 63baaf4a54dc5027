"""Reads the words of a command line before Typer does: names as llama.cpp writes them, its flags that we do not have.

Owns the rules of names: underscores stand for dashes, a value may follow a single letter directly if it is a number,
`--name=value`. Knows nothing of what options mean or where values come from otherwise.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING

from llmkit.errors import UsageError
from llmkit.shell.groups import words
from llmkit.shell.llama_flags import NO_SAMPLING, CommandFlags, Flag, takes_optional

if TYPE_CHECKING:
    from typer.core import TyperOption


NAMED = frozenset({"PATH|NAME", "USER/REPO[:QUANT]", "URL", "FILE", "DIR", "FOLDER"})
"""What names a model or a file. An empty text is none: it comes from a variable or command that gave nothing, and taken
for "not given" it would be another model."""


@dataclass
class CommandLine:
    """What was typed: `args` for Typer to read, the options that are there with their last value, and the flags of
    llama.cpp that are ignored, as they were typed, with the reason."""

    args: list[str] = field(default_factory=list)
    given: dict[str, str] = field(default_factory=dict)
    ignored: dict[str, str] = field(default_factory=dict)


class Reader:
    """Reads the arguments of one command, whose options are `options`."""

    def __init__(self, command: str, options: "Sequence[TyperOption]", flags: CommandFlags) -> None:
        self._command, self._flags = command, flags
        self._own = {name: option for option in options for name in (*option.opts, *option.secondary_opts)}
        self._samples = "--top-k" in self._own

    def read(self, args: Sequence[str]) -> CommandLine:
        """UsageError for a name that there is not, or a flag that is refused."""
        line, rest = CommandLine(), list(args)
        while rest:
            word = rest.pop(0)
            if word == "--":
                line.args += [word, *rest]
                break
            if not word.startswith("-") or word == "-":
                line.args.append(word)
            else:
                self._read_option(word, rest, line)
        return line

    def _read_option(self, word: str, rest: list[str], line: CommandLine) -> None:
        typed, equals, value = word.partition("=")
        name = _with_dashes(typed)
        if (option := self._own.get(name)) is not None:
            self._take(option, name, [value] if equals else [], rest, line)
        elif (option := self._own.get(name[:2])) is not None and re.match(r"-[A-Za-z]-?\.?\d", word):
            self._take(option, name[:2], [word[2:]], rest, line)
        elif (flag := self._flags.find(name)) is not None:
            self._skip(flag, typed, 1 if equals else 0, rest, line)
        else:
            raise self._unknown(typed)

    def _take(self, option: "TyperOption", name: str, values: list[str], rest: list[str], line: CommandLine) -> None:
        """Hands an option of the command and its values on; what is missing or too much is Typer's to say."""
        if option.is_flag:
            line.args.append("=".join([name, *values]))
        else:
            if not values and takes_optional(name) and _no_value(rest):
                values = ["on"]
            while rest and len(values) < option.nargs:
                values.append(rest.pop(0))
            line.args += [name, *values]
        if values[-1:] == [""] and option.metavar in NAMED:
            raise UsageError(f"{name} is given an empty text", f"Give {option.metavar}, or leave {name} out.")
        line.given[option.name or name] = values[-1] if values else ""

    def _skip(self, flag: Flag, typed: str, n_values: int, rest: list[str], line: CommandLine) -> None:
        if flag.refused:
            raise UsageError(f"{typed} is not there: {flag.refused}", f"leave {typed} out")
        no_sampling = flag.group == "sampling" and not self._samples
        if not flag.ignored and not no_sampling:
            message = f"llama.cpp has {typed}, but `llmkit {words(self._command)}` does not"
            raise UsageError(message, f"`llmkit {words(self._command)} --help` shows the options")
        n_missing = flag.n_values - n_values
        if flag.optional and _no_value(rest):
            n_missing = 0
        if n_missing > len(rest):
            raise UsageError(f"Option {typed!r} requires {'an argument' if n_missing == 1 else f'{n_missing} values'}.")
        del rest[: max(0, n_missing)]
        line.ignored[typed] = flag.ignored or NO_SAMPLING

    def _unknown(self, typed: str) -> UsageError:
        by_word = {name.lstrip("-"): name for name in self._own}
        close = get_close_matches(_with_dashes(typed).lstrip("-"), by_word, n=1)
        guess = f"did you mean {by_word[close[0]]}? " if close else ""
        return UsageError(
            f"No such option: {typed}", f"{guess}`llmkit {words(self._command)} --help` shows the options"
        )


def _no_value(rest: Sequence[str]) -> bool:
    return not rest or rest[0].startswith("-")


def _with_dashes(name: str) -> str:
    """--top_k as --top-k."""
    return name.replace("_", "-")
