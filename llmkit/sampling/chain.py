"""Which steps stand between the logits and the token, and in which order.

Owns the names of the steps, when each is on, and how a chain is told. Knows nothing of how a step works.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from llmkit.params import SamplingParams
from llmkit.sampling.adaptive_p import AdaptiveP
from llmkit.sampling.candidates import Candidates, Ids
from llmkit.sampling.draw import Best, Draw
from llmkit.sampling.dry import Dry, Vocabulary
from llmkit.sampling.min_p import min_p
from llmkit.sampling.mirostat import Mirostat1, Mirostat2
from llmkit.sampling.penalties import penalties
from llmkit.sampling.temperature import dynamic_temperature, temperature
from llmkit.sampling.top_k import top_k
from llmkit.sampling.top_n_sigma import top_n_sigma
from llmkit.sampling.top_p import top_p
from llmkit.sampling.typical import typical
from llmkit.sampling.xtc import MAX_THRESHOLD, xtc


class Past(Protocol):
    """What steps may ask of a sequence."""

    def last(self, n: int) -> Ids:
        """The last n tokens, or as many as there are."""

    def chance(self) -> float:
        """A random number in [0, 1) for the token that is being chosen."""


@dataclass(frozen=True)
class Step:
    """A step that is on: its words for a log line, and what it does.

    edits: it changes the logits of few tokens and drops none. keeps_best: it never drops the best token.
    skips_impossible: it drops tokens of logit -inf by itself; others must not meet them.
    """

    text: str
    apply: Callable[[Candidates, Past], Candidates]
    edits: bool = False
    keeps_best: bool = True
    skips_impossible: bool = False


class Selector(Protocol):
    """The end of a chain: chooses a token with a random number in [0, 1)."""

    def choose(self, candidates: Candidates, u: float) -> int: ...


_DROP_IMPOSSIBLE = Step("", lambda c, past: c.possible())


def build_chain(params: SamplingParams, vocab: Vocabulary | None = None) -> tuple[list[Step], Selector]:
    """The steps that are on, in order, and what chooses at the end. vocab: for DRY's sequence breakers."""
    if params.mirostat:
        steps = [Step(f"temp {params.temp:g}", lambda c, past: temperature(c, params.temp))]
    else:
        found = [_MAKERS[name](params, vocab) for name in params.samplers if name != "adaptive_p"]
        steps = [step for step in found if step is not None]
    if params.greedy and all(step.keeps_best for step in steps):
        return [step for step in steps if step.edits], Best()
    n_edits = next((i for i, step in enumerate(steps) if not step.edits), len(steps))
    if n_edits == len(steps) or not steps[n_edits].skips_impossible:
        steps.insert(n_edits, _DROP_IMPOSSIBLE)
    return steps, _selector(params)[1]


def describe_chain(params: SamplingParams) -> str:
    """The chain in words, for a log line: what is on, in order."""
    bias = [f"logit-bias of {len(params.logit_bias)}"] * bool(params.logit_bias)
    texts = [step.text for step in build_chain(params)[0] if step.text]
    return " -> ".join([*bias, *texts, _selector(params)[0]])


def _selector(p: SamplingParams) -> tuple[str, Selector]:
    if p.greedy:
        return "greedy", Best()
    if p.mirostat == 1:
        return f"mirostat {p.mirostat_tau:g}", Mirostat1(p.mirostat_tau, p.mirostat_eta)
    if p.mirostat == 2:
        return f"mirostat-v2 {p.mirostat_tau:g}", Mirostat2(p.mirostat_tau, p.mirostat_eta)
    if p.adaptive_target >= 0:
        return f"adaptive-p {p.adaptive_target:g}", AdaptiveP(p.adaptive_target, p.adaptive_decay)
    return "dist", Draw()


# What makes each step; None if it is off.


def _penalties(p: SamplingParams, _vocab: Vocabulary | None) -> Step | None:
    if p.repeat_last_n == 0 or (p.repeat_penalty, p.frequency_penalty, p.presence_penalty) == (1, 0, 0):
        return None
    return Step(
        f"penalties {p.repeat_penalty:g} {p.frequency_penalty:g} {p.presence_penalty:g}",
        lambda c, past: penalties(
            c, past.last(p.repeat_last_n), p.repeat_penalty, p.frequency_penalty, p.presence_penalty
        ),
        edits=True,
    )


def _dry(p: SamplingParams, vocab: Vocabulary | None) -> Step | None:
    if p.dry_multiplier == 0 or p.dry_penalty_last_n == 0:
        return None
    dry = Dry(p.dry_multiplier, p.dry_base, p.dry_allowed_length, p.dry_sequence_breakers, vocab)
    return Step(f"dry {p.dry_multiplier:g}", lambda c, past: dry(c, past.last(p.dry_penalty_last_n)), edits=True)


def _top_n_sigma(p: SamplingParams, _vocab: Vocabulary | None) -> Step | None:
    if p.top_n_sigma <= 0:
        return None
    return Step(f"top-n-sigma {p.top_n_sigma:g}", lambda c, past: top_n_sigma(c, p.top_n_sigma), skips_impossible=True)


def _top_k(p: SamplingParams, _vocab: Vocabulary | None) -> Step | None:
    if p.top_k <= 0:
        return None
    return Step(f"top-k {p.top_k}", lambda c, past: top_k(c, p.top_k), skips_impossible=True)


def _typical(p: SamplingParams, _vocab: Vocabulary | None) -> Step | None:
    if p.typical_p >= 1:
        return None
    return Step(f"typical {p.typical_p:g}", lambda c, past: typical(c, p.typical_p, p.min_keep), keeps_best=False)


def _top_p(p: SamplingParams, _vocab: Vocabulary | None) -> Step | None:
    if p.top_p >= 1:
        return None
    return Step(f"top-p {p.top_p:g}", lambda c, past: top_p(c, p.top_p, p.min_keep))


def _min_p(p: SamplingParams, _vocab: Vocabulary | None) -> Step | None:
    if p.min_p <= 0:
        return None
    return Step(f"min-p {p.min_p:g}", lambda c, past: min_p(c, p.min_p, p.min_keep))


def _xtc(p: SamplingParams, _vocab: Vocabulary | None) -> Step | None:
    if p.xtc_probability <= 0 or p.xtc_threshold > MAX_THRESHOLD:
        return None
    return Step(
        f"xtc {p.xtc_probability:g} {p.xtc_threshold:g}",
        lambda c, past: xtc(c, p.xtc_probability, p.xtc_threshold, p.min_keep, past.chance()),
        keeps_best=False,
    )


def _temperature(p: SamplingParams, _vocab: Vocabulary | None) -> Step | None:
    spread = f" +- {p.dynatemp_range:g}" if p.dynatemp_range else ""
    return Step(
        f"temp {p.temp:g}{spread}",
        lambda c, past: dynamic_temperature(c, p.temp, p.dynatemp_range, p.dynatemp_exponent),
    )


_MAKERS: dict[str, Callable[[SamplingParams, Vocabulary | None], Step | None]] = {
    "penalties": _penalties,
    "dry": _dry,
    "top_n_sigma": _top_n_sigma,
    "top_k": _top_k,
    "typ_p": _typical,
    "top_p": _top_p,
    "min_p": _min_p,
    "xtc": _xtc,
    "temperature": _temperature,
}
