"""The kinds of tasks that `llmkit perplexity` scores: how each is read, run and shown.

Owns what ties a format of llmkit.evaluate to its lines and its JSON.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import _perplexity_text as show
from ._engine import Engine
from ._interrupt import Interruption
from ._text import read_source

if TYPE_CHECKING:
    from llmkit.tokenizer import Tokenizer


@dataclass(frozen=True)
class TaskKind:
    """How one kind of task is scored and shown. scores: (engine, stop) -> a score after each task."""

    n_tasks: int
    scores: Callable[[Engine, Interruption], Iterator[Any]]
    header: str
    line: Callable[[Any], str]
    final: Callable[[Any], str]
    to_json: Callable[[Any], dict[str, Any]]


def read_tasks(task: str, file: str | None, n_wanted: int) -> TaskKind:
    """Reads the tasks, so that what is wrong with them is said before the model is opened. n_wanted 0 means all."""
    raw, place = read_source(file)
    if task == "multiple-choice":
        return _multiple_choice(raw, n_wanted)
    from llmkit.evaluate.text import decode_text

    text = decode_text(raw, place)
    return _hellaswag(text, n_wanted) if task == "hellaswag" else _winogrande(text, n_wanted)


def _tokenizer(engine: Engine) -> "Tokenizer":
    assert engine.tokenizer is not None, "the engine was opened for texts"
    return engine.tokenizer


def _count(n_wanted: int, n_there: int) -> int:
    return min(n_wanted, n_there) if n_wanted > 0 else n_there


def _hellaswag(text: str, n_wanted: int) -> TaskKind:
    from llmkit.evaluate import hellaswag as task

    tasks = task.parse_hellaswag(text)
    n = _count(n_wanted, len(tasks))

    def scores(engine: Engine, stop: Interruption) -> Iterator[Any]:
        return task.hellaswag(engine.ctx, _tokenizer(engine), tasks, n, stop)

    return TaskKind(n, scores, show.HELLASWAG_HEADER, show.hellaswag_line, show.hellaswag_final, show.hellaswag_json)


def _winogrande(text: str, n_wanted: int) -> TaskKind:
    from llmkit.evaluate import winogrande as task

    tasks = task.parse_winogrande(text)

    def scores(engine: Engine, stop: Interruption) -> Iterator[Any]:
        return task.winogrande(engine.ctx, _tokenizer(engine), tasks, n_wanted, stop)

    n = _count(n_wanted, len(tasks))
    return TaskKind(n, scores, "", show.winogrande_line, show.winogrande_final, show.winogrande_json)


def _multiple_choice(raw: bytes, n_wanted: int) -> TaskKind:
    from llmkit.evaluate import multiple_choice as task

    tasks = task.parse_multiple_choice(raw, n_wanted)

    def scores(engine: Engine, stop: Interruption) -> Iterator[Any]:
        return task.multiple_choice(engine.ctx, _tokenizer(engine), tasks, stop)

    return TaskKind(
        len(tasks), scores, show.MULTIPLE_CHOICE_HEADER, show.multiple_choice_line, show.multiple_choice_final,
        show.multiple_choice_json,
    )  # fmt: skip
