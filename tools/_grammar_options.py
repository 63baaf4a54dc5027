"""The options that make a text follow a grammar or a JSON schema: shared by all commands that generate.

Owns their names, which are llama.cpp's, and reading the files they name. What a grammar means is
llmkit/sampling/grammar.py's. `with_grammar` gives the options to a command.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmkit.errors import GrammarError, UsageError

if TYPE_CHECKING:
    from llmkit.sampling.grammar import Grammar
    from llmkit.tokenizer import Tokenizer


@dataclass(frozen=True)
class GrammarText:
    """A grammar or schema as it was given, and by which option."""

    option: str
    text: str
    is_schema: bool

    def compile(self, tokenizer: "Tokenizer", n_vocab: int) -> "Grammar":
        """The grammar for a model's tokens; GrammarError names the option."""
        from llmkit.sampling.grammar import GrammarCompiler

        compiler = GrammarCompiler(tokenizer, n_vocab)
        try:
            return compiler.from_json_schema(self.text) if self.is_schema else compiler.from_gbnf(self.text)
        except GrammarError as error:
            raise GrammarError(f"{self.option}: {error.message}", error.hint) from error


def _option(*names: str, metavar: str, help: str) -> Any:
    return Annotated[str | None, typer.Option(*names, metavar=metavar, help=help)]


_OPTIONS: dict[str, Any] = {
    "grammar": _option("--grammar", metavar="GBNF", help="Only generate what this grammar describes."),
    "grammar_file": _option("--grammar-file", metavar="FILE", help="The same, from a file."),
    "json_schema": _option(
        "-j", "--json-schema", metavar="SCHEMA", help="Only generate JSON that this schema describes; {}: any JSON."
    ),
    "json_schema_file": _option("-jf", "--json-schema-file", metavar="FILE", help="The same, from a file."),
}
_NAMES = {"grammar": "--grammar", "grammar_file": "--grammar-file", "json_schema": "-j", "json_schema_file": "-jf"}


def with_grammar(command: Callable[..., int]) -> Callable[..., int]:
    """Gives a command these options in the place of its parameter `grammar: GrammarText | None`."""
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        shared = [
            inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
            for option, kind in _OPTIONS.items()
        ]
        parameters += shared if name == "grammar" else [parameter]

    @functools.wraps(command)
    def called(**given: Any) -> int:
        mine = {name: value for name in _OPTIONS if (value := given.pop(name)) is not None}
        return command(**given, grammar=_grammar(mine))

    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {p.name: p.annotation for p in parameters}
    return called


def _grammar(given: dict[str, str]) -> GrammarText | None:
    if not given:
        return None
    if len(given) > 1:
        first, second = (_NAMES[name] for name in list(given)[:2])
        raise UsageError(f"there are two grammars, from {first} and from {second}", "Give one of them.")
    ((name, value),) = given.items()
    place = _NAMES[name]
    if name.endswith("_file"):
        place, value = f"{place} {value}", _read(value, place)
    return GrammarText(place, value, is_schema=name.startswith("json"))


def _read(file: str, option: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"the file {file} given by {option} is not UTF-8: byte {error.start}") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"the file {file} given by {option} cannot be read: {reason}") from error
