"""How llama-bench's parameters are written: lists and ranges.

`512`, `1,2,4`, `64-256` (step 1), `64-256+64` (adding), `64-512*2` (multiplying), and any of these joined by commas.
"""

import re
from collections.abc import Iterable, Sequence

from llmkit.errors import UsageError

_RANGE = re.compile(r"(\d+)(?:-(\d+)(?:([+*])(\d+))?)?")
_HINT = "numbers and ranges joined by commas: 512, 1,2,4, 64-256+64, 64-512*2"
MAX_VALUES = 1000  # a slip such as 1-100000 is found at once, not after days


def parse_numbers(option: str, texts: Iterable[str]) -> list[int]:
    """All numbers of all `texts`, in order; UsageError names `option` and the part that is no number or range."""
    values = [value for text in texts for part in text.split(",") for value in _numbers(option, part)]
    if len(values) > MAX_VALUES:
        raise UsageError(f"{option} has {len(values)} values; at most {MAX_VALUES} are taken", _HINT)
    return values


def _numbers(option: str, part: str) -> range | list[int]:
    found = _RANGE.fullmatch(part.strip())
    if not found:
        raise UsageError(f"{option}: {part!r} is neither a number nor a range", _HINT)
    first, last = int(found[1]), int(found[2] or found[1])
    adding, step = found[3] != "*", int(found[4] or 1)
    if last < first:
        raise UsageError(f"{option}: {part!r} is empty", "a range goes from the smaller to the larger number")
    if adding:
        if step == 0:
            raise UsageError(f"{option}: {part!r} never ends", "add at least 1")
        return range(first, last + 1, step)
    if (step < 2 or first == 0) and first != last:
        raise UsageError(f"{option}: {part!r} never ends", "begin at 1 or more and multiply by at least 2")
    values = [first]
    while values[-1] * max(step, 2) <= last:
        values.append(values[-1] * step)
    return values


def parse_pairs(option: str, texts: Iterable[str]) -> list[tuple[int, int]]:
    """`pp,tg` each: two numbers. UsageError otherwise."""
    pairs = []
    for text in texts:
        parts = text.split(",")
        if len(parts) != 2 or not all(part.strip().isdecimal() for part in parts):
            raise UsageError(f"{option}: {text!r} is not two numbers", f"for example {option} 512,128")
        pairs.append((int(parts[0]), int(parts[1])))
    return pairs


def parse_words(option: str, texts: Iterable[str], meaning: dict[str, str]) -> list[str]:
    """Comma lists of words, each replaced by what it means; UsageError names the words there are."""
    words = [word.strip() for text in texts for word in text.split(",")]
    unknown: Sequence[str] = [word for word in words if word not in meaning]
    if unknown:
        raise UsageError(f"{option}: {unknown[0]!r} is unknown", f"one of {', '.join(meaning)}")
    return [meaning[word] for word in words]
