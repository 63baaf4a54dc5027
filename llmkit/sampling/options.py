"""Sampling options as people write them: lists of steps, biases.

Owns the spellings, which are llama.cpp's. Light to import: a command line reads them before anything is computed.
"""

import re

from llmkit.errors import UsageError
from llmkit.params import ALL_SAMPLERS

LETTERS = dict(zip("edskypmxta", ALL_SAMPLERS, strict=True))
"""What `--sampler-seq` calls each step."""

_OTHER_NAMES = {"nucleus": "top_p", "temp": "temperature", "typ": "typ_p", "typical": "typ_p", "typical_p": "typ_p"}


def parse_samplers(text: str) -> tuple[str, ...]:
    """Steps from `penalties;top_k;temperature`; `top-k` and `topk` will do. Nothing means no step, only the draw."""
    squeezed = {name.replace("_", ""): name for name in ALL_SAMPLERS}
    found = []
    for part in text.split(";") if text.strip() else []:
        name = part.strip().lower().replace("-", "_")
        name = _OTHER_NAMES.get(name, squeezed.get(name.replace("_", ""), ""))
        if not name:
            raise UsageError(f"there is no sampler {part.strip()!r}", f"There are {', '.join(ALL_SAMPLERS)}.")
        found.append(name)
    return tuple(found)


def parse_sampler_seq(text: str) -> tuple[str, ...]:
    """Steps from letters, as in `edskypmxt`."""
    if unknown := [letter for letter in text if letter not in LETTERS]:
        letters = ", ".join(f"{letter} {name}" for letter, name in LETTERS.items())
        raise UsageError(f"no sampler has the letter {unknown[0]!r}", f"They are {letters}.")
    return tuple(LETTERS[letter] for letter in text)


def parse_logit_bias(text: str) -> tuple[int, float]:
    """(id, bias) from `15043+1`, `15043-0.5`, `15043-inf`."""
    match = re.fullmatch(r"\s*([0-9]{1,10})\s*([+-])\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?|inf)\s*", text, re.ASCII)
    if not match:
        raise UsageError(
            f"the logit bias {text!r} cannot be read", "Write ID+BIAS or ID-BIAS, such as 15043+1 or 2-inf."
        )
    return int(match[1]), float(match[2] + match[3])
