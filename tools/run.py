"""`llmkit run`: completes a prompt.

Owns the order of things: read the prompt, open the model, compute, show. Knows nothing of how tokens are made.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from llmkit import report
from llmkit.errors import UsageError
from llmkit.params import ContextParams, GenerateParams, SamplingParams

from . import _options as options
from ._batch_lines import DEFAULT_PARALLEL, answer_lines
from ._chat_options import ChatOptions, is_conversation, with_chat
from ._engine import Engine, open_engine
from ._grammar_options import GrammarText, with_grammar
from ._sampling_options import StopTexts, with_sampling
from ._state_options import StateOptions, with_state

if TYPE_CHECKING:
    from llmkit.engine.generation.generate import GeneratedToken, Generation
    from llmkit.engine.generation.sampler import TextGrammar
    from llmkit.engine.generation.timings import Timings

    from ._chat import MakeGeneration
    from ._completion import View
    from ._kept_state import KeptState

EXIT_INTERRUPTED = 130


@dataclass(frozen=True)
class Request:
    """What to complete, how, and how to show it. At most one of prompt, file and ids is given; none means stdin."""

    model: str | None = None
    prompt: str | None = None
    file: str | None = None
    ids: str | None = None
    escape: bool = True
    n_predict: int = -1
    n_logprobs: int | None = None
    context: ContextParams = field(default_factory=ContextParams)
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stops: StopTexts = field(default_factory=StopTexts)
    display_prompt: bool = True
    as_json: bool = False
    overrides: list[str] = field(default_factory=list)
    n_parallel: int = 1
    grammar: GrammarText | None = None
    batch_lines: bool = False
    kept: StateOptions = field(default_factory=StateOptions)


@with_state
@with_grammar
@with_chat
@with_sampling
def run_cli(
    *,
    model: options.ModelOption = None,
    prompt: options.PromptOption = None,
    file: options.FileOption = None,
    ids: options.IdsOption = None,
    chat: ChatOptions,
    n_predict: options.PredictOption = -1,
    n_ctx: options.CtxSizeOption = 0,
    n_threads: options.ThreadsOption = 0,
    n_batch: options.BatchOption = 2048,
    n_ubatch: options.UbatchOption = 512,
    type_k: options.TypeKOption = "f16",
    type_v: options.TypeVOption = "f16",
    swa_full: options.SwaFullOption = False,
    sampling: SamplingParams,
    stops: StopTexts,
    grammar: GrammarText | None,
    kept: StateOptions,
    escape: options.EscapeOption = True,
    display_prompt: options.DisplayPromptOption = True,
    as_json: options.JsonOption = False,
    n_logprobs: options.LogprobsOption = None,
    n_parallel: options.ParallelOption = None,
    batch_lines: options.BatchLinesOption = False,
    overrides: options.OverrideOption = None,
) -> int:
    """Complete a prompt given by -p, by -f, or through a pipe, or converse with -cnv; the text streams to stdout."""
    if n_parallel is None:
        n_parallel = DEFAULT_PARALLEL if batch_lines else 1
    context = ContextParams(
        n_ctx, n_batch, n_ubatch, n_threads, type_k, type_v, n_seq_max=n_parallel, kv_unified=False, swa_full=swa_full
    )
    request = Request(
        model, prompt, file, ids, escape, n_predict, n_logprobs, context, sampling, stops, display_prompt, as_json,
        overrides or [], n_parallel, grammar, batch_lines, kept,
    )  # fmt: skip
    if batch_lines and (chat.conversation or chat.asked):
        raise UsageError(f"--batch-lines does not go with {chat.asked or '-cnv'}", "Write the template's text into -p.")
    if chat.show_template:
        from ._chat_template import show_template

        return show_template(request, chat)
    return _converse(request, chat) if not batch_lines and is_conversation(request, chat) else run(request)


def _converse(request: Request, chat: ChatOptions) -> int:
    from ._chat import run_chat
    from ._kept_state import check_conversation

    check_conversation(request.kept)

    def make(engine: Engine) -> "MakeGeneration":
        grammar = _grammar(engine, request)
        return lambda ids, params, timings: _generation(
            engine, request, ids, params, timings, grammar=grammar and grammar.clone()
        )

    return run_chat(request, chat, make)


def run(request: Request) -> int:
    """Completes the prompt and shows the result; returns the exit code: 0, or 130 if interrupted."""
    if request.batch_lines:
        return answer_lines(request, _generation)
    from llmkit.engine.generation.timings import Timings

    from ._kept_state import KeptState, check_parallel

    check_parallel(request.kept, request.n_parallel)
    # A chunk larger than a pass would be computed in passes all the same, and keep Ctrl-C waiting for them all.
    chunk = min(request.context.n_batch, request.context.n_ubatch)
    params = GenerateParams(request.n_predict, chunk, request.n_logprobs)
    prompt = read_text_or_ids(request)
    timings = Timings()
    needs_text = request.ids is None or bool(request.stops.all) or request.grammar is not None
    with open_engine(
        request.model, request.context, timings, needs_text=needs_text, overrides=request.overrides
    ) as engine:
        from llmkit.engine.generation.generate import StopReason  # loads kernels: word of that goes before

        kept = KeptState(request.kept, engine)
        kept.load()
        generation = _prepare(engine, request, kept.ids(prompt), params, timings, kept.past)
        generations = [generation]
        if request.n_parallel > 1:
            generations = _complete_many(engine, request, prompt, generation, kept)
        else:
            tokens = _complete(engine, request, prompt, generation, kept)
            _show_end(engine, request, generation, tokens, kept.past)
        kept.finish(generation)
    interrupted = StopReason.INTERRUPTED in [generation.stop_reason for generation in generations]
    return EXIT_INTERRUPTED if interrupted else 0


def read_text_or_ids(request: Request) -> str | list[int]:
    """The prompt: a text, or ids."""
    from ._prompt import nothing_piped, parse_ids, read_prompt

    if request.ids is None:
        if request.kept.state is not None and request.prompt is None and request.file is None and nothing_piped():
            return ""  # goes on without more
        return read_prompt(request.prompt, request.file, escape=request.escape)
    if request.prompt is not None or request.file is not None:
        raise UsageError("there are two prompts, from --ids and from -p or -f", "Give one of them.")
    return parse_ids(request.ids)


def _prepare(
    engine: Engine, request: Request, ids: list[int], params: "GenerateParams", timings: "Timings", past: list[int]
) -> "Generation":
    """Checks that the prompt's ids fit behind the past, and only then readies the kernels."""
    from llmkit.engine.generation.sampler import describe_chain

    prompt_ids = _prompt_ids(engine, ids)
    request.sampling.check_ids(engine.model.config.n_vocab)
    generation = _generation(engine, request, prompt_ids, params, timings, grammar=_grammar(engine, request), past=past)
    sampler = generation.sampler
    report.detail(f"prompt: {len(prompt_ids)} tokens: {','.join(map(str, prompt_ids))}")
    seed = "" if request.sampling.greedy else f", seed {sampler.seed}"
    report.detail(f"sampling: {describe_chain(request.sampling)}{seed}")
    timings.kernels_s += engine.ctx.warm_up()
    report.detail(f"kernels: ready after {timings.kernels_s:.2f} s")
    return generation


def _grammar(engine: Engine, request: Request) -> "TextGrammar | None":
    """What texts are bound to; each needs a clone of its own."""
    if request.grammar is None:
        return None
    assert engine.tokenizer is not None, "a grammar needs a tokenizer, which open_engine made sure of"
    return request.grammar.compile(engine.tokenizer, engine.model.config.n_vocab)


def _generation(
    engine: Engine,
    request: Request,
    prompt_ids: list[int],
    params: "GenerateParams",
    timings: "Timings",
    number: int = 0,
    grammar: "TextGrammar | None" = None,
    past: Sequence[int] = (),
) -> "Generation":
    """Continuation number 0, 1 ... of the prompt, in the sequence with that id; `grammar` becomes its own. `past` are
    tokens before the prompt that are computed already."""
    from llmkit.engine.generation.completion import generate

    generation = generate(
        engine.ctx, prompt_ids, n_predict=params.n_predict, sampling=request.sampling, stop=request.stops.stops,
        reverse_prompt=request.stops.reverse_prompts, grammar=grammar, n_logprobs=params.n_logprobs,
        seq=engine.ctx.memory.sequence(number), n_batch=params.n_batch, timings=timings,
    )  # fmt: skip
    generation.sampler.accept(past)
    return generation


def _prompt_ids(engine: Engine, ids: list[int]) -> list[int]:
    """The prompt's ids, checked against the vocabulary. (An empty text gives the begin token alone.)"""
    n_vocab = engine.model.config.n_vocab
    for token in ids:
        if token >= n_vocab:
            raise UsageError(f"--ids holds {token}, but the model's {n_vocab} tokens end at {n_vocab - 1}")
    if not ids:
        raise UsageError(
            "the prompt is empty, and this model has no token to begin a text with", "Give a text with -p."
        )
    return ids


def _complete(
    engine: Engine, request: Request, prompt: str | list[int], generation: "Generation", kept: "KeptState"
) -> "list[GeneratedToken]":
    """Generates, showing each token as it comes; Ctrl-C ends it after the current step."""
    from ._interrupt import Interruption

    tokens: list[GeneratedToken] = []
    with Interruption() as interruption:
        generation.interrupted = interruption
        view = _view(engine, request, prompt)
        for token in generation:
            view.add(token)
            if not tokens:
                kept.prompt_done()
            tokens.append(token)
        view.end(generation.tail)
    if not tokens and generation.stop_reason == "limit":  # -n 0
        kept.prompt_done()
    return tokens


def _complete_many(
    engine: Engine, request: Request, prompt: str | list[int], first: "Generation", kept: "KeptState"
) -> "list[Generation]":
    """As many continuations as were asked for, with the seeds after the first one's; they are shown in order."""
    from llmkit.engine.generation.batched import BatchedGeneration, seeds

    from ._batched import SequencesView, sequences_json, sequences_logprobs, spell_id
    from ._interrupt import Interruption

    prompt_ids, params, timings = list(first.prompt_ids), first.params, first.timings
    generations, grammar = [first], first.sampler.grammar
    for i, seed in enumerate(seeds(first.sampler.seed, request.n_parallel)[1:], 1):
        own = replace(request, sampling=replace(request.sampling, seed=seed))
        generations.append(
            _generation(engine, own, prompt_ids, params, timings, i, grammar and grammar.clone(), kept.past)
        )
    text = prompt if isinstance(prompt, str) else engine.tokenizer.decode(prompt) if engine.tokenizer else ""
    text = text if engine.tokenizer else ",".join(map(str, prompt_ids))
    report.note(f"generating {request.n_parallel} sequences ...")
    with Interruption() as interruption:
        first.interrupted = interruption
        view = SequencesView(generations, text if request.display_prompt else "", not request.as_json)
        if engine.tokenizer is None:
            view.spell = spell_id
        for number, (which, token) in enumerate(BatchedGeneration(engine.ctx, generations)):
            if number == 0:
                kept.prompt_done()
            view.add(which, token)
        view.end()
    if request.as_json:
        report.result_json(sequences_json(engine.model.name, view, engine.tokenizer))
    elif params.n_logprobs is not None:
        for line in sequences_logprobs(view, engine.tokenizer):
            report.note(line)
    for i, generation in enumerate(generations):
        report.detail(f"sequence {i}: seed {generation.sampler.seed}, stop: {generation.stop_reason}")
    for line in timings.lines():
        report.note(line)
    return generations


def _view(engine: Engine, request: Request, prompt: str | list[int]) -> "View":
    """How the completion is shown while it grows."""
    from ._completion import IdsView, SilentView, TextView

    if request.as_json:
        return SilentView()
    if isinstance(prompt, list):
        if engine.tokenizer is None:
            return IdsView(prompt if request.display_prompt else [])
        prompt = engine.tokenizer.decode(prompt)
    return TextView(prompt if request.display_prompt else "")


def _show_end(
    engine: Engine, request: Request, generation: "Generation", tokens: "list[GeneratedToken]", past: list[int]
) -> None:
    """What comes when the text has ended: JSON on stdout, the rest on stderr."""
    from ._completion import json_result, logprob_lines

    if request.as_json:
        report.result_json(json_result(engine.model.name, generation, tokens, engine.tokenizer, past))
    elif request.n_logprobs is not None:
        for line in logprob_lines(tokens, engine.tokenizer):
            report.note(line)
    word = generation.stopping_word
    report.detail(f"stop: {generation.stop_reason}" + ("" if word is None else f" {word!r}"))
    for line in generation.timings.lines():
        report.note(line)
