"""The options by which a text goes on from a state file, or leaves one: shared by all commands that generate.

Owns their names; --prompt-cache and its companions are llama.cpp's. What they do is _kept_state.py's. `with_state`
gives the options to a command.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from llmkit.errors import UsageError


@dataclass(frozen=True)
class StateOptions:
    """state: a file to go on from, `seq_id` which sequence of it; save: a file to leave at the end.

    cache: a file that is both, for the part of the prompt that it shares; `cache_all`: with the answer; `cache_ro`: it
    is only read.
    """

    state: str | None = None
    seq_id: int | None = None
    save: str | None = None
    compress: bool = False
    cache: str | None = None
    cache_all: bool = False
    cache_ro: bool = False

    def __post_init__(self) -> None:
        if self.state is not None and self.cache is not None:
            raise UsageError("there are two states to go on from, --state and --prompt-cache", "Give one of them.")
        if self.cache_all and self.cache_ro:
            raise UsageError("--prompt-cache-all and --prompt-cache-ro exclude each other")
        for given, option, needed, other in (
            (self.cache_all, "--prompt-cache-all", self.cache, "--prompt-cache"),
            (self.cache_ro, "--prompt-cache-ro", self.cache, "--prompt-cache"),
            (self.seq_id is not None, "--state-seq", self.state, "--state"),
            (self.compress, "--compress", self.save, "--save-state"),
        ):
            if given and needed is None:
                raise UsageError(f"{option} says how {other} is used, which is not given")

    @property
    def any(self) -> bool:
        """Whether a file is read or written."""
        return (self.state or self.save or self.cache) is not None

    @property
    def saves_answer(self) -> bool:
        """Whether a file is written that holds what was generated."""
        return self.save is not None or self.cache_all


def _text(*names: str, metavar: str, help: str) -> Any:
    return Annotated[str | None, typer.Option(*names, metavar=metavar, help=help)]


_OPTIONS: dict[str, tuple[Any, Any]] = {
    "state": (
        _text("--state", metavar="FILE", help="Go on from a saved state; the prompt is what comes behind it."),
        None,
    ),
    "seq_id": (
        Annotated[
            int | None,
            typer.Option("--state-seq", metavar="ID", help="The sequence to take, where the state holds several."),
        ],
        None,
    ),
    "save": (_text("--save-state", metavar="FILE", help="Save the state at the end, for --state."), None),
    "compress": (
        Annotated[bool, typer.Option("--compress", help="--save-state: smaller, but copied on loading.")],
        False,
    ),
    "cache": (
        _text(
            "--prompt-cache",
            metavar="FILE",
            help="Take the prompt's state from FILE as far as it is the same, and save it.",
        ),
        None,
    ),
    "cache_all": (
        Annotated[bool, typer.Option("--prompt-cache-all", help="--prompt-cache: save the answer's state too.")],
        False,
    ),
    "cache_ro": (Annotated[bool, typer.Option("--prompt-cache-ro", help="--prompt-cache: do not save.")], False),
}


def with_state(command: Callable[..., int]) -> Callable[..., int]:
    """Gives a command these options in the place of its parameter `kept: StateOptions`."""
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        shared = [
            inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
            for option, (kind, default) in _OPTIONS.items()
        ]
        parameters += shared if name == "kept" else [parameter]

    @functools.wraps(command)
    def called(**given: Any) -> int:
        mine = {name: given.pop(name) for name in _OPTIONS}
        return command(**given, kept=StateOptions(**mine))

    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {p.name: p.annotation for p in parameters}
    return called
