"""JSON that comes from outside, as the standard has it: Python's reader also takes NaN, Infinity, 1e999 and half
surrogate pairs, which nobody can be given again.

Owns what is no JSON. Knows no fields.
"""

import json
import math
import re
from typing import Any

_LONE = re.compile("[\ud800-\udfff]")


def parse_json(text: str) -> Any:
    """The value of a JSON text, with U+FFFD for half surrogate pairs, which are no characters.

    json.JSONDecodeError for what is no JSON, ValueError for a number that is none (NaN, infinite, of thousands of
    digits), RecursionError for what is nested too deeply.
    """
    value = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    return _sound(value) if "\\u" in text else value


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is too large")
    return value


def _sound(value: Any) -> Any:
    if isinstance(value, str):
        return _LONE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_sound(item) for item in value]
    if isinstance(value, dict):
        return {_sound(key): _sound(item) for key, item in value.items()}
    return value
