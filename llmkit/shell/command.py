"""One command from its words to its exit code: reads them, finds the values that were not typed, calls the function.

Owns the order of these steps. Typer owns types and help; its own main loop is left out: it would end with 2 on a wrong
option, and meet a closed pipe before we do.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer
from typer.main import get_command

from llmkit import report
from llmkit.errors import UsageError
from llmkit.shell.arguments import CommandLine, Reader
from llmkit.shell.coercion import use_plain_coercion
from llmkit.shell.common import add_common, choose_model, set_manners
from llmkit.shell.config_file import ConfigFile, read_config
from llmkit.shell.groups import words
from llmkit.shell.llama_flags import CommandFlags
from llmkit.shell.settings import NOT_OPTIONS, PREFIX, Setting, find_settings, long_name, variables

if TYPE_CHECKING:
    from typer._click import Context
    from typer.core import TyperCommand, TyperOption

SECRETS = ("key", "token", "password")
"""Options with one of these in their name are not shown with their value."""


@dataclass(frozen=True)
class BuiltCommand:
    """A command's parser, and the names of the options in it that the command's function does not know."""

    parser: "TyperCommand"
    added: frozenset[str]

    @property
    def name(self) -> str:
        """As in `llmkit NAME`."""
        return self.parser.name or ""

    @property
    def options(self) -> "list[TyperOption]":
        """All that begin with a dash, --help among them."""
        return [param for param in self.parser.get_params(self.context()) if param.param_type_name == "option"]  # type: ignore[misc]

    def context(self) -> "Context":
        """What Typer needs to describe the command."""
        parser = self.parser
        return parser.context_class(parser, info_name=f"llmkit {words(self.name)}", **parser.context_settings)


Build = Callable[[str], BuiltCommand]


def build_command(name: str, function: Callable[..., Any]) -> BuiltCommand:
    """The parser of a function's options and of those that all commands have."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    # An option is found by its name with dashes, however it was typed: --top_k and --top-k, as in llama.cpp.
    settings = {"help_option_names": ["-h", "--help"], "token_normalize_func": lambda name: name.replace("_", "-")}
    app.command(name, context_settings=settings)(function)
    parser: TyperCommand = get_command(app)  # type: ignore[assignment]
    command = BuiltCommand(parser, frozenset(add_common(parser)))
    use_plain_coercion(parser.get_params(command.context()))
    return command


def run_command(command: BuiltCommand, args: Sequence[str], commands: Sequence[str], build: Build) -> int:
    """Calls the command with what was typed and set; its exit code. UsageError for anything wrong with that.

    commands, build: the names of all commands and how to make one, to know what the configuration may hold.
    """
    name, options = command.name, command.options
    flags = CommandFlags(name)
    line = Reader(name, options, flags).read(args)
    if "help" in line.given:
        report.result(command.parser.get_help(command.context()))
        return 0
    config = read_config(line.given.get("config"), commands)
    settings = find_settings(name, options, line.given, config, lambda: _all_names(commands, build))
    _open_log(line, settings)
    context = _parse(command, line, settings)
    values = dict(context.params)
    set_manners(values)
    choose_model(command.parser, values)
    _tell(name, options, line, config, settings, flags)
    assert command.parser.callback is not None, "Typer makes it of the function"
    try:
        with context:  # where a command can ask whether an option was typed
            code = command.parser.callback(**{key: value for key, value in values.items() if key not in command.added})
    except typer.Exit as exc:
        return exc.exit_code
    except UsageError as exc:
        raise _with_places(exc, options, settings) from exc
    return code if isinstance(code, int) else 0


def _all_names(commands: Sequence[str], build: Build) -> frozenset[str]:
    """The names of all options of all commands."""
    return frozenset(name for command in commands for option in build(command).options for name in option.opts)


def _open_log(line: CommandLine, settings: Mapping[str, Setting]) -> None:
    """As early as its name is known, so that what goes wrong next is in it."""
    setting = settings.get("log_file")
    if path := line.given.get("log_file") or (setting and setting.value):
        report.open_log(str(path))


def _parse(command: BuiltCommand, line: CommandLine, settings: Mapping[str, Setting]) -> "Context":
    """The values of all options and arguments, of the right types, and where they come from."""
    name = f"llmkit {words(command.name)}"
    defaults = {key: setting.value for key, setting in settings.items()}
    try:
        return command.parser.make_context(name, list(line.args), default_map=defaults)
    except typer.TyperException as exc:
        message, hint = exc.format_message(), f"`{name} --help` shows the options"
        if "unexpected extra argument" in message and ".gguf" in message:
            hint = f"a model is given with -m; {hint}"
        wrong = str(getattr(getattr(exc, "param", None), "name", ""))
        if wrong in settings and wrong not in line.given:
            message = f"{settings[wrong].place}: {message}"
        raise UsageError(message, hint) from exc


def _with_places(error: UsageError, options: "Sequence[TyperOption]", settings: Mapping[str, Setting]) -> UsageError:
    """The error, with where a value comes from that it speaks of and nobody typed."""
    places = []
    for option in options:
        names = {option.name, long_name(option)}
        if option.name in settings and any(re.search(rf"(?<![\w-]){name}\b", error.message) for name in names):
            places.append(f"{long_name(option)} comes from {settings[option.name].place}")
    hint = ". ".join(part.rstrip(".") for part in (error.hint, *places) if part)
    return type(error)(error.message, hint) if places else error


def _tell(
    name: str,
    options: "Sequence[TyperOption]",
    line: CommandLine,
    config: ConfigFile | None,
    settings: Mapping[str, Setting],
    flags: CommandFlags,
) -> None:
    """One notice for what is ignored; with -v where each value comes from that was not typed."""
    if line.ignored:
        report.note("ignored: " + "; ".join(f"{flag} ({why})" for flag, why in line.ignored.items()))
    for flag in flags.refused():
        if flag.env and os.environ.get(flag.env):
            report.warning(f"{flag.env} is set, which llmkit does not use: {flag.refused}")
    if config is not None:
        report.detail(f"configuration: {config.path}")
    for option in options:
        if (setting := settings.get(option.name)) is not None:
            secret = any(word in option.name for word in SECRETS)
            report.detail(f"{long_name(option)} {'...' if secret else setting.value}: from {setting.place}")
    for variable in sorted(os.environ):
        if variable in {flag.env for flag in flags.ignored() if flag.env}:
            report.detail(f"{variable} is set, which means nothing to llmkit")
        elif variable.startswith(PREFIX) and variable not in NOT_OPTIONS | {variables(option)[0] for option in options}:
            report.detail(f"{variable} is set, which is no option of `llmkit {name}`")
