"""JSON schemas, before llguidance compiles them: what it would not enforce is refused by name.

Owns reading the text of a schema, and the list of keywords. What a keyword means is llguidance's, which follows Draft
2020-12 and refuses by itself what it knows but cannot do.
"""

import json
from typing import Any

from llmkit.errors import GrammarError

MAX_CHARS = 1 << 20
MAX_DEPTH = 64
MAX_NODES = 100_000

Schema = dict[str, Any] | bool


def read_schema(schema: Schema | str) -> str:
    """The schema as JSON for llguidance; GrammarError if it is none, is too large, or holds what is not supported."""
    if isinstance(schema, str):
        if len(schema) > MAX_CHARS:
            raise GrammarError(f"the JSON schema has {len(schema)} characters; {MAX_CHARS} are allowed")
        try:
            schema = json.loads(schema, parse_constant=_refuse_constant)
        except RecursionError as error:
            raise GrammarError("the JSON schema is nested too deep") from error
        except ValueError as error:
            raise GrammarError(f"the JSON schema is no JSON: {error}") from error
    if not isinstance(schema, dict | bool):
        raise GrammarError("a JSON schema is an object, or true or false", 'For example {"type": "object"}.')
    return json.dumps(schema, allow_nan=False)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")
