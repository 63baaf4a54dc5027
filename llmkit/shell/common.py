"""The options that every command has, declared once, and what they do before the command begins.

Owns -v, -q, --log-file, --color and --config, and -hf and -mu for the commands that take a model. A command may declare
one of them itself: then that one counts.
"""

from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmkit import report
from llmkit.errors import UsageError
from llmkit.shell.completion import hub_names

if TYPE_CHECKING:
    from typer.core import TyperCommand, TyperOption


def _common(
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Say more on stderr.")] = False,
    quiet: Annotated[
        bool, typer.Option("-q", "--quiet", help="Say nothing on stderr but warnings and errors.")
    ] = False,
    log_file: Annotated[
        str | None,
        typer.Option("--log-file", metavar="FILE", help="Append what goes to stderr to FILE too, with the time."),
    ] = None,
    color: Annotated[
        str,
        typer.Option("-co", "--color", metavar="on|off|auto", help="Colours; auto: on a terminal without NO_COLOR."),
    ] = "auto",
    config: Annotated[
        str | None,
        typer.Option("--config", metavar="FILE", help="Read settings from FILE instead of llmkit's config.toml."),
    ] = None,
) -> None: ...


def _model_places(
    hf_repo: Annotated[
        str | None,
        typer.Option(
            "-hf",
            "-hfr",
            "--hf-repo",
            metavar="USER/REPO[:QUANT]",
            help="A model of the Hugging Face hub that `llmkit pull hf:USER/REPO[:QUANT]` fetched.",
            autocompletion=hub_names,
        ),
    ] = None,
    model_url: Annotated[
        str | None, typer.Option("-mu", "--model-url", metavar="URL", help="A model that `llmkit pull URL` fetched.")
    ] = None,
) -> None: ...


MODEL_PLACES = ("hf_repo", "model_url")


def add_common(command: "TyperCommand") -> list[str]:
    """Gives a command the common options that it has not declared; their names, which it must not be called with."""
    added: list[str] = []
    if (model := _model_option(command)) is not None:
        places = _options_of(_model_places)
        command.params[_index(command, model) : _index(command, model)] = _missing(command, places)
        added += [option.name for option in places]
    common = _missing(command, _options_of(_common))
    command.params += common
    return added + [option.name for option in common]


def _options_of(function: Callable[..., None]) -> "list[TyperOption]":
    from typer.main import get_command

    app = typer.Typer(add_completion=False)
    app.command()(function)
    options: list[TyperOption] = get_command(app).params  # type: ignore[assignment]
    return options


def _missing(command: "TyperCommand", options: "list[TyperOption]") -> "list[TyperOption]":
    """Those of which the command has no name yet."""
    taken = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
    return [option for option in options if not taken & set(option.opts)]


def _model_option(command: "TyperCommand") -> "TyperOption | None":
    """The command's own -m."""
    return next((param for param in command.params if "--model" in param.opts), None)  # type: ignore[return-value]


def _index(command: "TyperCommand", option: "TyperOption") -> int:
    return command.params.index(option) + 1


def choose_model(command: "TyperCommand", values: MutableMapping[str, Any]) -> None:
    """Turns -hf and -mu into what -m would say; UsageError if two of them are given."""
    option = _model_option(command)
    if option is None:
        return
    given = values.get(option.name)
    found = [("-m", given)] if given else []
    for name, flag in zip(MODEL_PLACES, ("-hf", "-mu"), strict=True):
        if value := values.get(name):
            found.append((flag, "hf:" + value.removeprefix("hf:") if name == "hf_repo" else value))
    if len(found) > 1:
        raise UsageError(f"there are two models, from {found[0][0]} and from {found[1][0]}", "Give one of them.")
    if found and found[0][0] != "-m":
        values[option.name] = [found[0][1]] if option.multiple else found[0][1]


def set_manners(values: MutableMapping[str, Any]) -> None:
    """Chooses the level and the colours; UsageError for what excludes each other."""
    quiet, verbose = bool(values.get("quiet")), bool(values.get("verbose"))
    if quiet and verbose:
        raise UsageError("-q and -v exclude each other")
    report.set_level(quiet=quiet, verbose=verbose)
    report.set_color(str(values.get("color") or "auto"))
