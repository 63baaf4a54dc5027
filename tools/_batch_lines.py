"""`llmkit run --batch-lines`: an answer for each line of stdin, several computed at once, shown in order.

Owns how lines become prompts and how answers are shown: text, a line each, or JSON lines. What is computed when is
llmkit/engine/generation/lines.py's.
"""

import secrets
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from llmkit import report
from llmkit.errors import LlmkitError, UsageError
from llmkit.params import MAX_SEED, GenerateParams

from ._line_input import BadLine, BlankLine, LineInput, Question

if TYPE_CHECKING:
    from llmkit.engine.generation.generate import GeneratedToken, Generation
    from llmkit.engine.generation.lines import Answer, Make
    from llmkit.engine.generation.sampler import TextGrammar
    from llmkit.engine.generation.timings import Timings

    from ._completion import Pieces
    from ._engine import Engine
    from .run import Request

PLACE = "{}"
DEFAULT_PARALLEL = 8
N_AHEAD = 1024
"""How many lines may be answered before one that takes long, each at most: what waits is kept in memory."""

EXIT_SOME_FAILED, EXIT_INTERRUPTED = 2, 130

MakeGeneration = Callable[..., "Generation"]
"""run.py's: of (engine, request, prompt ids, params, timings, id of the sequence, grammar)."""


def answer_lines(request: "Request", make: MakeGeneration) -> int:
    """Answers the lines of stdin; returns the exit code: 0, 2 if a line could not be answered, 130 if interrupted."""
    from llmkit.engine.generation.timings import Timings

    from ._engine import open_engine
    from ._kept_state import KeptState, check_lines

    check_lines(request.kept)
    template, lines, timings = _template(request), _stdin(), Timings()
    context = replace(request.context, n_seq_max=request.n_parallel + 1)
    with open_engine(request.model, context, timings, needs_text=True, overrides=request.overrides) as engine:
        from ._interrupt import Interruption

        assert engine.tokenizer is not None, "lines need a tokenizer, which open_engine made sure of"
        request.sampling.check_ids(engine.model.config.n_vocab)
        grammar: TextGrammar | None = None
        if request.grammar is not None:
            grammar = request.grammar.compile(engine.tokenizer, engine.model.config.n_vocab)
        kept = KeptState(request.kept, engine, request.n_parallel)
        kept.load()
        timings.kernels_s += engine.ctx.warm_up()
        with Interruption() as interruption:
            source = LineInput(lines, as_json=request.as_json, interrupted=interruption)
            prompts = LinePrompts(source, engine, request, make, timings, grammar, *template, past=kept.past)
            return _answer(engine, request, prompts, interruption, timings)


def _answer(
    engine: "Engine", request: "Request", prompts: "LinePrompts", interrupted: Callable[[], bool], timings: "Timings"
) -> int:
    from llmkit.engine.generation.lines import LineBatch

    assert engine.tokenizer is not None
    began = time.perf_counter()
    view = LinesView(prompts.questions, request.as_json, engine.tokenizer)
    n_rows = min(request.context.n_batch, request.context.n_ubatch)
    for answer in LineBatch(
        engine.ctx, prompts, request.n_parallel, n_rows, N_AHEAD, request.n_parallel,
        prompts.encode(prompts.before), interrupted, timings,
    ):  # fmt: skip
        view.add(answer)
    return _end(view, timings, time.perf_counter() - began, interrupted=interrupted())


def _template(request: "Request") -> tuple[str, str]:
    """What stands before and behind a line, from -p or -f; refuses what makes no sense with lines."""
    from ._prompt import read_prompt

    if request.ids is not None:
        raise UsageError("--ids gives one prompt, and --batch-lines reads many", "Give one of them.")
    if request.file == "-":
        raise UsageError("-f - reads stdin, which holds the lines", "Give the prompt with -p or in a file.")
    if request.n_logprobs is not None and not request.as_json:
        raise UsageError("--batch-lines shows log-probabilities with --json only", "Give --json.")
    if request.prompt is None and request.file is None:
        return "", ""
    return split_template(read_prompt(request.prompt, request.file, escape=request.escape))


def _stdin() -> Any:
    """Stdin as bytes; UsageError if it is closed."""
    if sys.stdin is None:
        raise UsageError("stdin is closed", "Give --batch-lines its lines through a pipe or from a file.")
    return sys.stdin.buffer


def split_template(template: str | None) -> tuple[str, str]:
    """What stands before and behind a line; UsageError unless there is one place for it."""
    if template is None:
        return "", ""
    if template.count(PLACE) != 1:
        raise UsageError(
            f"the prompt has {template.count(PLACE)} places {PLACE} for the line; one is expected",
            "For example -p 'Translate: {}'; without -p or -f a line is the whole prompt.",
        )
    before, _, behind = template.partition(PLACE)
    return before, behind


@dataclass
class LinePrompts:
    """Turns lines into generations, for the engine; `questions` holds those that are not answered yet, by number;
    `past` the tokens of a state that each line comes behind."""

    lines: LineInput
    engine: "Engine"
    request: "Request"
    make: MakeGeneration
    timings: "Timings"
    grammar: "TextGrammar | None"
    before: str
    behind: str
    past: list[int] = field(default_factory=list)
    questions: dict[int, Question] = field(default_factory=dict)
    n_taken: int = 0

    def __post_init__(self) -> None:
        sampling = self.request.sampling
        self.seed = secrets.randbelow(MAX_SEED) if sampling.random_seed else sampling.seed

    @property
    def ended(self) -> bool:
        """Whether all lines were taken."""
        return self.lines.ended

    def take(self, *, wait: bool) -> "Make | LlmkitError | None":
        """The next line's generation; see engine/generation/lines.py."""
        line = self.lines.next(wait=wait)
        if line is None:
            return None
        question = line.question if isinstance(line, BadLine) else line
        self.questions[self.n_taken] = question
        self.n_taken += 1
        return line.error if isinstance(line, BadLine) else lambda seq_id: self._generation(question, seq_id)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text behind the state's, which are computed already."""
        assert self.engine.tokenizer is not None
        return self.past + self.engine.tokenizer.encode(text, add_special=not self.past)

    def _generation(self, question: Question, seq_id: int) -> "Generation":
        request = self.request
        ids = self.encode(self.before + question.text + self.behind)
        seed = question.seed if question.seed is not None else (self.seed + question.index) % MAX_SEED
        stops = replace(request.stops, stops=(*request.stops.stops, *question.stops))
        own = replace(request, sampling=replace(request.sampling, seed=seed), stops=stops)
        n_predict = request.n_predict if question.n_predict is None else question.n_predict
        params = GenerateParams(n_predict, n_logprobs=request.n_logprobs)
        grammar = None if self.grammar is None else self.grammar.clone()
        return self.make(self.engine, own, ids, params, self.timings, seq_id, grammar)


@dataclass
class LinesView:
    """Shows answers in the order of their lines. The first one that is not complete streams, unless it is JSON."""

    questions: dict[int, Question]
    as_json: bool
    pieces: "Pieces | None"
    n_failed: int = 0
    n_shown: int = 0
    _waiting: dict[int, list["Answer"]] = field(default_factory=dict)
    _tokens: list["GeneratedToken"] = field(default_factory=list)

    def add(self, answer: "Answer") -> None:
        """Shows what is new, and what waited for it, or keeps it until it is its turn."""
        if answer.number != self.n_shown:
            self._waiting.setdefault(answer.number, []).append(answer)
            return
        self._show(answer)
        while self._waiting and self.n_shown in self._waiting:
            for waiting in self._waiting.pop(self.n_shown):
                self._show(waiting)

    def _show(self, answer: "Answer") -> None:
        if answer.token is not None:
            self._tokens.append(answer.token)
            if not self.as_json:
                report.stream(one_line(answer.token.text))
            return
        question = self.questions.pop(answer.number)
        failed = answer.error is not None and not isinstance(answer.error, BlankLine)
        self.n_failed += failed
        if self.as_json:
            report.stream(_json_line(question, answer, self._tokens, self.pieces))
        else:
            tail = answer.generation.tail if answer.generation is not None else ""
            report.stream(one_line(tail) + "\n")
            if failed and answer.error is not None:
                report.error(f"line {question.index + 1}: {answer.error.message}", answer.error.hint)
        self._tokens = []
        self.n_shown += 1


def one_line(text: str) -> str:
    r"""A text without line breaks: \n and \r are written so, and a backslash as two."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


def _json_line(question: Question, answer: "Answer", tokens: list["GeneratedToken"], pieces: "Pieces | None") -> str:
    import json

    from ._completion import step_json

    value: dict[str, Any] = {"index": question.index} | ({"id": question.id} if question.has_id else {})
    generation = answer.generation
    if answer.error is not None or generation is None:
        assert answer.error is not None, "an end is a generation's or an error's"
        value["error"] = {"message": answer.error.message, "hint": answer.error.hint}
    else:
        logprobs = generation.params.n_logprobs
        value |= {
            "text": "".join(token.text for token in tokens) + generation.tail,
            "ids": generation.ids,
            "stop_reason": generation.stop_reason,
            "stopping_word": generation.stopping_word,
            "seed": generation.sampler.seed,
            "prompt_n": len(generation.prompt_ids),
            "cached_n": answer.n_shared,
            "logprobs": None if logprobs is None else [step_json(token, pieces) for token in tokens],
        }
    return json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n"


def _end(view: LinesView, timings: "Timings", seconds: float, *, interrupted: bool) -> int:
    """Says how it went; the exit code."""
    for line in timings.lines():
        report.note(line)
    rate = f" = {view.n_shown / seconds:.2f} lines/s" if seconds > 0 else ""
    report.note(f"lines       {seconds * 1e3:10.1f} ms / {view.n_shown} lines{rate}")
    if view.n_failed:
        report.note(f"{view.n_failed} of {view.n_shown} lines could not be answered")
    return EXIT_INTERRUPTED if interrupted else EXIT_SOME_FAILED if view.n_failed else 0
