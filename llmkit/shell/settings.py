"""Where a value comes from that was not typed: LLMKIT_ variables, llama.cpp's, the configuration file.

Owns the order (command line, LLMKIT_..., LLAMA_ARG_..., the file's table of the command, the file's for all, default)
and what may be given together. Knows the options of one command, and nothing of what they mean.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, get_args, get_origin

from llmkit.errors import UsageError
from llmkit.shell.config_file import DEFAULTS, ConfigFile, Entry
from llmkit.shell.llama_flags import variable_of

if TYPE_CHECKING:
    from typer.core import TyperOption

PREFIX = "LLMKIT_"
NOT_OPTIONS = frozenset(
    {"LLMKIT_CACHE", "LLMKIT_CONFIG", "LLMKIT_DEBUG", "LLMKIT_POISON", "LLMKIT_SKIP_SLOW", "LLMKIT_TEST_USER_CACHE"}
)
"""Variables of that prefix that are no option's."""

NOT_SETTABLE = frozenset({"config", "help"})

EXCLUSIVE: tuple[frozenset[str], ...] = (
    frozenset({"model", "models", "hf_repo", "model_url"}),
    frozenset({"verbose", "quiet"}),
    frozenset({"prompt", "file", "ids"}),
    frozenset({"samplers", "sampler_seq"}),
    frozenset({"grammar", "grammar_file", "json_schema", "json_schema_file"}),
    frozenset({"system", "system_file"}),
    frozenset({"template", "template_file"}),
    frozenset({"chat_template", "chat_template_file"}),
    frozenset({"state", "cache"}),
    frozenset({"cache_all", "cache_ro"}),
)
"""Options of which one is given: what comes first in the order hides the others that come later."""

COMPANIONS = {"cache_all": "cache", "cache_ro": "cache", "seq_id": "state", "compress": "save"}
"""Options that say how another is used: where a command has that one and it is not given, they are not taken either."""

TRUE = ("1", "on", "true", "yes", "enabled")
FALSE = ("0", "off", "false", "no", "disabled")


@dataclass(frozen=True)
class Setting:
    """A value for an option, how near to the user it is (0 is nearest), and where it stands."""

    value: Any
    rank: int
    place: str


def variables(option: "TyperOption") -> tuple[str, str]:
    """The names of an option's variables: ours, and llama.cpp's or ""."""
    return PREFIX + long_name(option)[2:].replace("-", "_").upper(), variable_of([*option.opts, *option.secondary_opts])


def long_name(option: "TyperOption") -> str:
    """The option's first name with two dashes, or its first."""
    return next((name for name in option.opts if name.startswith("--")), f"-{option.opts[0]}")


def find_settings(
    command: str,
    options: "Sequence[TyperOption]",
    typed: Mapping[str, str],
    config: ConfigFile | None,
    known_elsewhere: Callable[[], frozenset[str]],
) -> dict[str, Setting]:
    """The settings by the options' names, without what was typed and what that rules out.

    known_elsewhere: the long names of all commands' options, for keys that hold for all. UsageError names the place of
    a key that there is not, or of a value of the wrong type.
    """
    found: dict[str, Setting] = {}
    for option in options:
        if option.name not in NOT_SETTABLE:
            for setting in _from_environment(option):
                found.setdefault(option.name, setting)
    if config is not None:
        for name, setting in _from_file(command, options, config, known_elsewhere):
            found.setdefault(name, setting)
    shown = {name: found[name] for name in found if not _hidden(name, found, typed)}
    names = {option.name for option in options}
    return {name: shown[name] for name in shown if not _is_idle(name, names - set(typed) - set(shown))}


def _is_idle(name: str, not_given: Set[str | None]) -> bool:
    """Whether it says how an option is used that the command has, and that is not given."""
    return COMPANIONS.get(name) in not_given and name in COMPANIONS


def _hidden(name: str, found: Mapping[str, Setting], typed: Mapping[str, str]) -> bool:
    """Whether the option itself, or one that excludes it, is given nearer to the user."""
    rivals = {other for group in EXCLUSIVE if name in group for other in group} | {name}
    if rivals & set(typed):
        return True
    return any(other in found and found[other].rank < found[name].rank for other in rivals)


def _from_environment(option: "TyperOption") -> Iterator[Setting]:
    """Of a variable that is set to nothing nothing is taken."""
    ours, llamas = variables(option)
    for rank, variable in enumerate((ours, llamas), 1):
        text = os.environ.get(variable, "") if variable else ""
        if text:
            yield Setting(_parsed(option, text, variable), rank, variable)
    negative = llamas.replace("LLAMA_ARG_", "LLAMA_ARG_NO_", 1)
    if option.is_flag and negative != llamas and negative in os.environ:
        yield Setting(False, 2, negative)


def _parsed(option: "TyperOption", text: str, variable: str) -> Any:
    if option.is_flag:
        if text.lower() not in (*TRUE, *FALSE):
            raise UsageError(f"{variable} is {text!r}; on or off is expected")
        return text.lower() in TRUE
    return [text] if option.multiple else text


def _from_file(
    command: str, options: "Sequence[TyperOption]", config: ConfigFile, known_elsewhere: Callable[[], frozenset[str]]
) -> Iterator[tuple[str, Setting]]:
    by_key = {name[2:]: option for option in options for name in option.opts if name.startswith("--")}
    for entry in config.of(command):
        option = by_key.get(entry.key)
        if option is not None and option.name not in NOT_SETTABLE:
            rank = 3 if entry.table == command else 4
            yield option.name, Setting(_checked(option, entry), rank, entry.place)
        elif entry.key in NOT_SETTABLE:
            raise UsageError(f"{entry.place}: --{entry.key} is for the command line alone", "Leave it out.")
        elif entry.table == command or f"--{entry.key}" not in known_elsewhere():
            names = [*by_key] if entry.table == command else [name[2:] for name in known_elsewhere()]
            close = get_close_matches(entry.key, sorted(names), n=1)
            where = f"`llmkit {command}` has no option --{entry.key}"
            if entry.table in ("", DEFAULTS):
                where = f"no command has an option --{entry.key}"
            guess = f"did you mean {close[0]}?" if close else "keys are the options' long names, without the dashes"
            raise UsageError(f"{entry.place}: {where}", guess)


def _checked(option: "TyperOption", entry: Entry) -> Any:
    """The value as Typer takes it; UsageError if its type is not the option's."""
    values = entry.value if option.multiple and isinstance(entry.value, list) else [entry.value]
    kind = _kind(option)
    for value in values:
        if not _fits(value, kind, option.multiple):
            wanted = {bool: "true or false", int: "a whole number", float: "a number"}.get(kind, "a text in quotes")
            more = f", or a list of them [{wanted}, ...]" if option.multiple else ""
            raise UsageError(f"{entry.place} is {value!r}; {wanted} is expected{more}")
    if kind in (bool, int, float):
        return values if option.multiple else values[0]
    return [str(value) for value in values] if option.multiple else str(values[0])


def _kind(option: "TyperOption") -> type:
    """bool, int, float, or str for everything that is written as a text."""
    if option.is_flag:
        return bool
    annotation: Any = option.type_descriptor.annotation
    if get_origin(annotation) is list:
        annotation = get_args(annotation)[0]
    return annotation if annotation in (int, float) else str


def _fits(value: Any, kind: type, is_list: bool) -> bool:
    """A list of texts may hold numbers: bench's lists are read later."""
    if isinstance(value, bool) or kind is bool:
        return kind is bool and isinstance(value, bool)
    if kind is int:
        return isinstance(value, int)
    return isinstance(value, (int, float) if kind is float else (str, int, float) if is_list else str)
