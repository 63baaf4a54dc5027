"""The frozen options that the engine takes, checked when they are made.

Owns names, defaults and ranges. Knows nothing about who sets them (a command line, an HTTP body) or what they are used
for. Names and defaults are llama.cpp's.
"""

import math
from dataclasses import dataclass

from llmkit.errors import UsageError

RANDOM_SEED = -1
"""The seed that stands for "choose one"; llama.cpp's clients also write it as 4294967295."""

MAX_SEED = 0xFFFFFFFF


SAMPLERS = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")
"""The steps between logits and draw, in llama.cpp's order."""

ALL_SAMPLERS = (*SAMPLERS, "adaptive_p")

UNTIL_STOPPED = -1
"""The n_predict that means: until the model ends the text or the context is full."""


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is chosen; docs/sampling.md says what each step does. Names and defaults are llama.cpp's.

    seed: -1 or 4294967295 chooses one at random. temp <= 0 takes the best token.
    top_k <= 0, top_p, typical_p 1, min_p, xtc_probability, dry_multiplier, dynatemp_range, repeat_last_n 0,
    repeat_penalty 1, top_n_sigma <= 0, adaptive_target < 0 switch a step off.
    min_keep: top_p, min_p, typical_p and xtc leave so many tokens at least.
    logit_bias: (id, what is added to its logit); -inf rules a token out. ignore_eos: so are those that end the text.
    samplers: the steps and their order; mirostat 1 or 2 takes the place of all but temperature and logit_bias.
    Values out of range raise UsageError naming the field.
    """

    seed: int = RANDOM_SEED
    temp: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    ignore_eos: bool = False
    repeat_last_n: int = 64
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    top_n_sigma: float = -1.0
    typical_p: float = 1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    adaptive_target: float = -1.0
    adaptive_decay: float = 0.9
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    logit_bias: tuple[tuple[int, float], ...] = ()
    samplers: tuple[str, ...] = SAMPLERS
    min_keep: int = 0

    def __post_init__(self) -> None:
        for name, low, high, hint in _SAMPLING_RANGES:
            check_range(name, getattr(self, name), low, high, hint)
        for token, bias in self.logit_bias:
            if token < 0 or not bias < math.inf:
                raise UsageError(
                    f"logit_bias gives token {token} a bias of {bias}", "Ids start at 0; a bias is a number, or -inf."
                )
        if unknown := [name for name in self.samplers if name not in ALL_SAMPLERS]:
            raise UsageError(f"there is no sampler {unknown[0]!r}", f"There are {', '.join(ALL_SAMPLERS)}.")
        if self.adaptive_target >= 0 and not ("adaptive_p" in self.samplers and self.mirostat == 0):
            raise UsageError(
                f"adaptive_target is {self.adaptive_target}, but adaptive_p is not among the samplers",
                f"Give --samplers '{';'.join(SAMPLERS)};adaptive_p', without --mirostat.",
            )

    @property
    def greedy(self) -> bool:
        """Whether every step takes the best token that is left and no draw happens."""
        return self.temp <= 0 and (self.dynatemp_range == 0 or self.mirostat != 0)

    @property
    def random_seed(self) -> bool:
        """Whether the seed is to be chosen for us."""
        return self.seed in (RANDOM_SEED, MAX_SEED)

    def check_ids(self, n_vocab: int) -> None:
        """Raises UsageError if a biased token is not in a vocabulary of this size."""
        if beyond := [token for token, _ in self.logit_bias if token >= n_vocab]:
            raise UsageError(f"logit_bias names token {beyond[0]}, but the model's tokens end at {n_vocab - 1}")


_FLOAT_MAX = 3.4028234663852886e38

_SAMPLING_RANGES: tuple[tuple[str, float, float | None, str], ...] = (
    ("seed", -1, MAX_SEED, "-1 chooses one at random"),
    ("temp", -_FLOAT_MAX, _FLOAT_MAX, "0 or less takes the best token at every step"),
    ("top_k", -1, None, "0 or -1 switches it off"),
    ("top_p", 0.0, 1.0, "1 switches it off"),
    ("min_p", 0.0, 1.0, "0 switches it off"),
    ("typical_p", 0.0, 1.0, "1 switches it off"),
    ("top_n_sigma", -_FLOAT_MAX, _FLOAT_MAX, "0 or less switches it off"),
    ("xtc_probability", 0.0, 1.0, "0 switches it off"),
    ("xtc_threshold", 0.0, 1.0, "above 0.5 it does nothing"),
    ("dynatemp_range", 0.0, _FLOAT_MAX, "0 switches it off"),
    ("dynatemp_exponent", 0.0, _FLOAT_MAX, "1 makes the temperature follow the entropy in a straight line"),
    ("repeat_last_n", 0, None, "0 switches the penalties off"),
    ("repeat_penalty", 1 / _FLOAT_MAX, _FLOAT_MAX, "it must be finite and greater than 0; 1 switches it off"),
    ("frequency_penalty", -_FLOAT_MAX, _FLOAT_MAX, "0 switches it off"),
    ("presence_penalty", -_FLOAT_MAX, _FLOAT_MAX, "0 switches it off"),
    ("dry_multiplier", 0.0, _FLOAT_MAX, "0 switches DRY off"),
    ("dry_base", 1.0, _FLOAT_MAX, "the penalty grows by this factor with each token repeated"),
    ("dry_allowed_length", 0, None, "repeats up to this length go without a penalty"),
    ("dry_penalty_last_n", 0, None, "0 switches DRY off"),
    ("adaptive_target", -_FLOAT_MAX, 1.0, "below 0 it is off"),
    ("adaptive_decay", 0.0, 0.99, "the higher, the longer the past counts"),
    ("mirostat", 0, 2, "0 is off, 1 is Mirostat, 2 is Mirostat 2.0"),
    ("mirostat_tau", 0.0, _FLOAT_MAX, "it is the surprise to aim at, in bits"),
    ("mirostat_eta", 0.0, _FLOAT_MAX, "it is how fast the limit follows"),
    ("min_keep", 0, None, "0 and 1 leave one token at least"),
)


def check_range(name: str, value: float, low: float, high: float | None, hint: str) -> None:
    """Raises UsageError unless low <= value <= high; NaN never passes."""
    if value >= low and (high is None or value <= high):
        return
    raise UsageError(f"{name} is {value}; {_wanted(low, high)} is expected", f"{hint[0].upper()}{hint[1:]}.")


def _wanted(low: float, high: float | None) -> str:
    """What a range asks for, in words."""
    if high is None or high == _FLOAT_MAX:
        return "a finite number" if low == -_FLOAT_MAX else f"at least {low}"
    return f"at most {high}" if low == -_FLOAT_MAX else f"from {low} to {high}"


MAX_SEQUENCES = 1_000_000

KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")


@dataclass(frozen=True)
class GenerateParams:
    """How much to generate and what to tell about it.

    n_predict: at most so many tokens; -1 until the text ends or the context is full; 0 only computes the prompt into
    the cache.
    n_batch: tokens of the prompt handed over at a time; a stop takes effect between two such chunks.
    n_logprobs: how many of the best log-probabilities to give with each token; None gives none, 0 the chosen token's
    alone. after_sampling: those that the steps of sampling leave, instead of the model's own.
    """

    n_predict: int = UNTIL_STOPPED
    n_batch: int = 2048
    n_logprobs: int | None = None
    after_sampling: bool = False

    def __post_init__(self) -> None:
        check_range(
            "n_predict",
            self.n_predict,
            UNTIL_STOPPED,
            None,
            "-1 generates until the text ends or the context is full; with --ignore-eos until it is full",
        )
        check_range("n_batch", self.n_batch, 1, None, "the prompt is computed in chunks of so many tokens")
        if self.n_logprobs is not None:
            check_range("logprobs", self.n_logprobs, 0, None, "0 gives the chosen token's alone")


@dataclass(frozen=True)
class ContextParams:
    """What a context is made of; defaults are llama.cpp's.

    n_ctx: cells; 0 lets the context choose. n_batch: rows handed to decode at most; n_ubatch: rows computed in one pass
    at most. n_threads: 0 or -1 takes the cores there are. type_k, type_v: the types that keys and values are stored in.
    n_seq_max: sequences that are to be held at once. kv_unified: they share n_ctx cells; else each may have n_ctx.
    swa_full: layers with a window keep all tokens, so that a sequence can be cut back to anywhere.
    """

    n_ctx: int = 0
    n_batch: int = 2048
    n_ubatch: int = 512
    n_threads: int = 0
    type_k: str = "f16"
    type_v: str = "f16"
    n_seq_max: int = 1
    kv_unified: bool = True
    swa_full: bool = False

    def __post_init__(self) -> None:
        check_range("n_seq_max", self.n_seq_max, 1, MAX_SEQUENCES, "so many sequences are held at once (-np)")
        check_range("n_ctx", self.n_ctx, 0, None, "0 takes what the model was trained for, or what memory allows")
        check_range("n_batch", self.n_batch, 1, None, "the prompt is computed in chunks of so many tokens")
        check_range("n_ubatch", self.n_ubatch, 1, None, "so many tokens go through the model in one pass")
        check_range("n_threads", self.n_threads, -1, 1024, "0 or -1 takes the cores there are")
        for name, value in (("type_k", self.type_k), ("type_v", self.type_v)):
            if value not in KV_TYPES:
                raise UsageError(f"{name} is {value!r}; one of {', '.join(KV_TYPES)} is expected")
