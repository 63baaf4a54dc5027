"""The options of sampling and of where a text stops: shared by all commands that generate.

Owns their names, which are llama.cpp's, their help, and turning them into SamplingParams, whose defaults and ranges
they have. `with_sampling` gives them to a command.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from llmkit.errors import UsageError
from llmkit.params import SAMPLERS, SamplingParams
from llmkit.sampling.options import LETTERS, parse_logit_bias, parse_sampler_seq, parse_samplers

from ._prompt import plain_text

NO_BREAKERS = "none"
_ORDER = ";".join(SAMPLERS)
_LETTERS = "".join(letter for letter, name in LETTERS.items() if name in SAMPLERS)


@dataclass(frozen=True)
class StopTexts:
    """Texts at which a generation ends: `stops` are left out of it, `reverse_prompts` are its last characters."""

    stops: tuple[str, ...] = ()
    reverse_prompts: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        """Both kinds."""
        return self.stops + self.reverse_prompts


def _option(kind: Any, *names: str, metavar: str | None = None, help: str, **more: Any) -> Any:
    return Annotated[kind, typer.Option(*names, metavar=metavar, help=help, **more)]


# In the order in which the help shows them; named like the fields of SamplingParams.
_FIELDS: dict[str, Any] = {
    "seed": _option(int, "-s", "--seed", metavar="N", help="Equal seeds draw equal texts; -1: a random seed."),
    "temp": _option(
        float, "--temp", "--temperature", metavar="T", help="Temperature; 0 or less: always the best token."
    ),
    "top_k": _option(int, "--top-k", metavar="K", help="Draw from the K best tokens; 0: from all."),
    "top_p": _option(
        float, "--top-p", metavar="P", help="Draw from the best that reach the probability P; 1: from all."
    ),
    "min_p": _option(
        float, "--min-p", metavar="P", help="Leave out tokens below P times the best one's probability; 0: none."
    ),
    "top_n_sigma": _option(
        float,
        "--top-nsigma",
        "--top-n-sigma",
        metavar="N",
        help="Leave out tokens more than N standard deviations below the best; 0 or less: none.",
    ),
    "typical_p": _option(
        float,
        "--typical",
        "--typical-p",
        metavar="P",
        help="Draw from the most typical tokens that exceed the probability P; 1: from all.",
    ),
    "xtc_probability": _option(
        float, "--xtc-probability", metavar="P", help="How often XTC leaves out all top choices but the last; 0: never."
    ),
    "xtc_threshold": _option(
        float, "--xtc-threshold", metavar="P", help="How probable a top choice is at least; above 0.5: XTC is off."
    ),
    "min_keep": _option(
        int, "--min-keep", metavar="N", help="Tokens that top-p, min-p, typical and XTC each leave at least."
    ),
    "repeat_last_n": _option(
        int, "--repeat-last-n", metavar="N", help="How many of the last tokens are penalised; 0: none."
    ),
    "repeat_penalty": _option(
        float, "--repeat-penalty", metavar="F", help="Divide the logits of the last tokens by F; 1: off."
    ),
    "presence_penalty": _option(
        float, "--presence-penalty", metavar="F", help="Take F from the logits of the last tokens; 0: off."
    ),
    "frequency_penalty": _option(
        float, "--frequency-penalty", metavar="F", help="Take F from them for each time that they were used; 0: off."
    ),
    "dry_multiplier": _option(
        float, "--dry-multiplier", metavar="F", help="Penalise tokens that prolong a repetition (DRY); 0: off."
    ),
    "dry_base": _option(
        float, "--dry-base", metavar="F", help="DRY's penalty grows by this factor with each token of the repetition."
    ),
    "dry_allowed_length": _option(
        int, "--dry-allowed-length", metavar="N", help="Repetitions shorter than N tokens are not penalised by DRY."
    ),
    "dry_penalty_last_n": _option(
        int, "--dry-penalty-last-n", metavar="N", help="DRY looks at the last N tokens; 0: off."
    ),
    "dynatemp_range": _option(
        float, "--dynatemp-range", metavar="R", help="Let the temperature vary by R with the entropy; 0: it is fixed."
    ),
    "dynatemp_exponent": _option(
        float, "--dynatemp-exp", metavar="E", help="How the temperature follows the entropy: to the power of E."
    ),
    "adaptive_target": _option(
        float,
        "--adaptive-target",
        metavar="P",
        help="Prefer tokens with a probability near P, with adaptive_p in --samplers; below 0: off.",
    ),
    "adaptive_decay": _option(
        float, "--adaptive-decay", metavar="D", help="How long adaptive-p's mean remembers: 0 to 0.99."
    ),
    "mirostat": _option(
        int, "--mirostat", metavar="N", help="Mirostat 1 or 2, instead of all steps but the temperature; 0: off."
    ),
    "mirostat_eta": _option(float, "--mirostat-lr", metavar="F", help="How fast Mirostat's limit follows."),
    "mirostat_tau": _option(float, "--mirostat-ent", metavar="F", help="The surprise that Mirostat aims at, in bits."),
    "ignore_eos": _option(bool, "--ignore-eos", help="Never choose a token that ends the text."),
}

# Those that are parsed; each may be left out.
_PARSED: dict[str, Any] = {
    "dry_sequence_breaker": _option(
        list[str] | None,
        "--dry-sequence-breaker",
        metavar="TEXT",
        help=r"What ends a repetition, instead of \n : quote and *; may be given several times; none: nothing does.",
    ),
    "logit_bias": _option(
        list[str] | None,
        "-l",
        "--logit-bias",
        metavar="ID+BIAS",
        help="Add to a token's logit, or with ID-BIAS take from it; ID-inf: never. May be given several times.",
    ),
    "samplers": _option(
        str | None, "--samplers", metavar="A;B;...", help=f"The steps, in their order.  [default: {_ORDER}]"
    ),
    "sampler_seq": _option(
        str | None,
        "--sampler-seq",
        "--sampling-seq",
        metavar="LETTERS",
        help=f"The same by letters.  [default: {_LETTERS}]",
    ),
    "stop": _option(
        list[str] | None,
        "--stop",
        metavar="TEXT",
        help="End the text before TEXT, which is not shown. May be given several times.",
    ),
    "reverse_prompt": _option(
        list[str] | None,
        "-r",
        "--reverse-prompt",
        metavar="TEXT",
        help="End the text after TEXT, which is shown. May be given several times.",
    ),
}


def with_sampling(command: Callable[..., int]) -> Callable[..., int]:
    """Gives a command these options in the place of its parameters `sampling: SamplingParams` and `stops: StopTexts`.

    Texts among them are unescaped unless the command's own `escape` is false.
    """
    own = inspect.signature(command).parameters
    defaults = SamplingParams()
    shared = [_parameter(name, kind, getattr(defaults, name)) for name, kind in _FIELDS.items()]
    shared += [_parameter(name, kind, None) for name, kind in _PARSED.items()]
    parameters: list[inspect.Parameter] = []
    for name, parameter in own.items():
        parameters += shared if name == "sampling" else [] if name == "stops" else [parameter]

    @functools.wraps(command)
    def called(**given: Any) -> int:
        mine = {name: given.pop(name) for name in (*_FIELDS, *_PARSED)}
        escape = given.get("escape", True)
        return command(**given, sampling=_sampling(mine, escape), stops=_stops(mine, escape))

    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {p.name: p.annotation for p in parameters}
    return called


def _parameter(name: str, kind: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _sampling(given: dict[str, Any], escape: bool) -> SamplingParams:
    fields = {name: given[name] for name in _FIELDS}
    if (texts := given["dry_sequence_breaker"]) is not None:
        unescaped = (plain_text(text, "--dry-sequence-breaker", escape=escape) for text in texts)
        fields["dry_sequence_breakers"] = tuple(text for text in unescaped if text != NO_BREAKERS)
    if given["logit_bias"]:
        fields["logit_bias"] = tuple(parse_logit_bias(text) for text in given["logit_bias"])
    if given["samplers"] is not None and given["sampler_seq"] is not None:
        raise UsageError("the steps are given twice, by --samplers and by --sampler-seq", "Give one of them.")
    if given["samplers"] is not None:
        fields["samplers"] = parse_samplers(given["samplers"])
    if given["sampler_seq"] is not None:
        fields["samplers"] = parse_sampler_seq(given["sampler_seq"])
    return SamplingParams(**fields)


def _stops(given: dict[str, Any], escape: bool) -> StopTexts:
    texts = []
    for name, option in (("stop", "--stop"), ("reverse_prompt", "-r")):
        found = tuple(plain_text(text, option, escape=escape) for text in given[name] or ())
        if "" in found:
            raise UsageError(f"{option} gives an empty text, which would end every text", "Leave it out.")
        texts.append(found)
    return StopTexts(*texts)
