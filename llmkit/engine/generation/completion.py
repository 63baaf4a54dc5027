"""`generate`: from a prompt to a text, with a model's tokenizer, a sampler and stop strings put together.

Owns the defaults of that. It is what a program calls (docs/api.md), and what `llmkit run` calls. Knows nothing of where
the text goes.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from llmkit.engine.generation.generate import Generation, NoText, never, nothing
from llmkit.engine.generation.sampler import Sampler, TextGrammar
from llmkit.engine.generation.stop_strings import StopStrings
from llmkit.engine.generation.timings import Timings
from llmkit.errors import TokenizerError, UsageError
from llmkit.params import UNTIL_STOPPED, GenerateParams, SamplingParams

if TYPE_CHECKING:
    from llmkit.engine.context import Context
    from llmkit.memory.sequence import Sequence as Handle
    from llmkit.models.model import Model
    from llmkit.tokenizer import Tokenizer


def generate(
    ctx: "Context",
    prompt: str | Sequence[int],
    *,
    n_predict: int = UNTIL_STOPPED,
    sampling: SamplingParams | None = None,
    stop: str | Sequence[str] = (),
    reverse_prompt: str | Sequence[str] = (),
    grammar: TextGrammar | None = None,
    n_logprobs: int | None = None,
    seq: "Handle | None" = None,
    n_batch: int | None = None,
    interrupted: Callable[[], bool] = never,
    timings: Timings | None = None,
) -> Generation:
    """A continuation of `prompt`, a text or token ids. Nothing is computed before it is iterated.

    n_predict: so many tokens at most; -1 until the text ends, 0 only computes the prompt. stop: texts at which it ends,
    without them; reverse_prompt: with them. grammar: what the text must follow (sampling/grammar.py makes them); it
    becomes this generation's own. n_logprobs: of how many tokens to give the log-probabilities. seq: the sequence to
    continue, which keeps what was computed; without it one that ends with the generation. n_batch: tokens of the prompt
    between two questions whether it is `interrupted`. timings: where to count.

    Raises UsageError for options that make no sense, TokenizerError for a text and a model without a tokenizer,
    ContextFullError for a prompt that does not fit; GrammarError for a grammar that cannot go on, while it is iterated.
    """
    model, sampling = ctx.model, sampling or SamplingParams()
    sampling.check_ids(model.config.n_vocab)
    stops, reverse_prompts = _texts("stop", stop), _texts("reverse_prompt", reverse_prompt)
    needs_text = isinstance(prompt, str) or bool(stops or reverse_prompts)
    tokenizer = model.tokenizer if needs_text else tokenizer_or_none(model)
    own = ctx.new_sequence() if seq is None else None
    handle = seq or own
    assert handle is not None, "one of them is there"
    if isinstance(prompt, str):
        prompt = model.tokenizer.encode(prompt, add_special=handle.n_tokens == 0)
    return Generation(
        ctx,
        handle,
        list(prompt),
        Sampler(sampling, tokenizer.eog_ids if tokenizer else (), tokenizer, grammar),
        GenerateParams(n_predict, n_batch or ctx.n_ubatch, n_logprobs),
        tokenizer.eog_ids if tokenizer else frozenset(),
        tokenizer.stream() if tokenizer else NoText(),
        StopStrings(stops, reverse_prompts),
        stop_ids(tokenizer, (*stops, *reverse_prompts)) if tokenizer else {},
        interrupted,
        timings or Timings(),
        nothing if own is None else lambda: ctx.free_sequence(own),
    )


def tokenizer_or_none(model: "Model") -> "Tokenizer | None":
    """The model's tokenizer, if it has one that works."""
    try:
        return model.tokenizer
    except TokenizerError:
        return None


def stop_ids(tokenizer: "Tokenizer", texts: Sequence[str]) -> dict[int, str]:
    """Control tokens that were given as stop texts: they have no text of their own that could be found."""
    found = {}
    for text in texts:
        ids = tokenizer.encode(text, add_special=False, parse_special=True)
        if len(ids) == 1 and not tokenizer.piece_bytes(ids[0]):
            found[ids[0]] = text
    return found


def _texts(name: str, given: str | Sequence[str]) -> tuple[str, ...]:
    texts = (given,) if isinstance(given, str) else tuple(given)
    if "" in texts:
        raise UsageError(f"{name} is an empty text, which would end every text", "leave it out")
    return texts
