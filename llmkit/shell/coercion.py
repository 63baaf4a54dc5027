"""Texts to numbers, truth values, paths and choices, for the plain types that our commands have.

Typer would load pydantic for that, which takes longer than everything else about a command line: a tenth of a second
for each start and each press of Tab. Options of other types stay Typer's.
"""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin

import typer

if TYPE_CHECKING:
    from typer._click import Parameter

WORDS: dict[type, str] = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    Path: "a path",
}
"""The plain types, and what a value of one is called."""


class Coercion:
    """Takes the place of Typer's for one parameter: values of `kind`, several in a list if `is_list`."""

    def __init__(self, kind: type, is_list: bool) -> None:
        self._kind, self._is_list = kind, is_list

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value; typer.BadParameter names the option if it is none."""
        if value is None:
            return [] if self._is_list else None
        if self._is_list:
            return [self._one(item, param, ctx) for item in value]
        return self._one(value, param, ctx)

    def _one(self, value: Any, param: Any, ctx: Any) -> Any:
        if isinstance(value, self._kind) or self._kind is bool:
            return value
        try:
            return self._kind(value)
        except ValueError as exc:
            choices = getattr(self._kind, "__members__", {}).values()
            wanted = WORDS.get(self._kind) or f"one of {', '.join(choices)}"
            raise typer.BadParameter(f"{str(value)!r} is not {wanted}.", ctx=ctx, param=param) from exc


def use_plain_coercion(params: "Sequence[Parameter]") -> None:
    """Gives it to those of a command's parameters that have plain types."""
    for param in params:
        descriptor: Any = param.type_descriptor  # type: ignore[attr-defined]
        annotation = descriptor.annotation
        is_list = get_origin(annotation) is list
        kind = get_args(annotation)[0] if is_list else annotation
        plain = kind in WORDS or (isinstance(kind, type) and issubclass(kind, StrEnum))
        if plain and not (descriptor.is_ranged or descriptor.is_file):
            param._runtime_param = Coercion(kind, is_list)  # type: ignore[attr-defined]
