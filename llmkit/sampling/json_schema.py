"""JSON schemas, before llguidance compiles them: what it would pass over in silence is refused, or made explicit.

Owns reading the text of a schema and its limits. What a keyword means is llguidance's, which follows Draft 2020-12 and
refuses by name what it knows but cannot do (`not`, `contains`, `uniqueItems`, `if`, remote `$ref`, ...).

Three things are made explicit, as llama.cpp has them. What has properties is an object, what has items an array. An
object whose properties are listed has no others, unless additionalProperties or patternProperties says so. An integer
without bounds has at most 16 digits (every reader of JSON holds it), so that a model cannot go on with them for ever.
The first two are left where schemas are laid over one another, as by allOf.
"""

import json
import math
from collections.abc import Iterator
from typing import Any

from llmkit.errors import GrammarError

MAX_CHARS = 1 << 20
MAX_DEPTH = 64
MAX_PROPERTIES = 2000
MAX_SCHEMAS = 20_000

MAX_INTEGER = 2**53 - 1

Schema = dict[str, Any] | bool

_IN_ONE = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames", "additionalItems")
_IN_LIST = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_IN_OBJECT = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LAYERED = ("anyOf", "oneOf", "$ref", "$dynamicRef", "if", "dependentSchemas")
_LAYOUT = ("whitespace_flexible", "whitespace_pattern", "item_separator", "key_separator")


def read_schema(schema: Schema | str) -> dict[str, Any]:
    """The schema for llguidance; GrammarError if it is none, is too large, or holds what would not be enforced."""
    schema = _parsed(schema)
    if isinstance(schema, bool):
        if not schema:
            raise GrammarError("the JSON schema is false, which nothing satisfies")
        schema = {}
    has_all_of = False
    for n_before, (node, _) in enumerate(_walk(schema)):
        has_all_of |= "allOf" in node
        if n_before == MAX_SCHEMAS:
            raise GrammarError(f"the JSON schema holds more than {MAX_SCHEMAS} schemas")
        _check(node)
    for node, is_layer in _walk(schema):
        _make_explicit(node, may_close=not has_all_of and not is_layer)
    return schema


def _parsed(schema: Schema | str) -> Schema:
    """A copy, so that nothing is changed of what belongs to others."""
    try:
        text = schema if isinstance(schema, str) else json.dumps(schema, allow_nan=False)
        if len(text) > MAX_CHARS:
            raise GrammarError(f"the JSON schema has {len(text)} characters; {MAX_CHARS} are allowed")
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except RecursionError as error:
        raise GrammarError("the JSON schema is nested too deep") from error
    except (ValueError, TypeError) as error:
        raise GrammarError(f"the JSON schema is no JSON: {error}") from error
    if not isinstance(value, dict | bool):
        raise GrammarError("a JSON schema is an object, or true or false", 'For example {"type": "object"}.')
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")


def _finite(digits: str) -> float:
    if math.isinf(value := float(digits)):
        raise ValueError(f"{digits[:40]} is too large")
    return value


def _walk(schema: Any) -> Iterator[tuple[dict[str, Any], bool]]:
    """All schemas within one, that are objects, and whether each is laid over another's properties."""
    waiting = [(schema, 0, False)]
    while waiting:
        node, depth, is_layer = waiting.pop()
        if not isinstance(node, dict):
            continue
        if depth > MAX_DEPTH:
            raise GrammarError(f"the JSON schema is nested more than {MAX_DEPTH} deep")
        yield node, is_layer
        for key, inner in node.items():
            if isinstance(inner, list) and key in _IN_LIST:
                layer = key in ("anyOf", "oneOf") and (is_layer or "properties" in node)
                waiting.extend((item, depth + 1, layer) for item in inner)
            elif isinstance(inner, dict) and key in _IN_ONE:
                waiting.append((inner, depth + 1, False))
            elif isinstance(inner, dict) and key in _IN_OBJECT:
                waiting.extend((item, depth + 1, False) for item in inner.values())


def _check(node: dict[str, Any]) -> None:
    for name in ("exclusiveMinimum", "exclusiveMaximum"):
        if isinstance(node.get(name), bool):
            raise GrammarError(f"{name} is true or false, as in Draft 4", "Since Draft 6 it is the number itself.")
    if isinstance(node.get("items"), list) and "prefixItems" in node:
        raise GrammarError("items is a list beside prefixItems", "Since Draft 2020-12 the list is prefixItems alone.")
    layout = node.get("x-guidance", {})
    if not isinstance(layout, dict):
        raise GrammarError("x-guidance is no object")
    if unknown := [key for key in layout if key not in _LAYOUT]:
        raise GrammarError(f"x-guidance holds {unknown[0]!r}", f"Only the layout can be changed: {', '.join(_LAYOUT)}.")
    n_required = len(required) if isinstance(required := node.get("required", []), list) else 0
    least = node.get("minProperties", 0)
    if isinstance(least, int) and least > max(1, n_required):
        raise GrammarError(
            f"minProperties is {least}: that so many names differ is not enforced", "Name them: required."
        )
    properties = node.get("properties")
    if isinstance(properties, dict) and len(properties) > MAX_PROPERTIES:
        raise GrammarError(f"an object has {len(properties)} properties; {MAX_PROPERTIES} are allowed")


_SAYS_TYPE = ("type", "enum", "const", "allOf", *_LAYERED)


def _make_explicit(node: dict[str, Any], *, may_close: bool) -> None:
    if may_close and not any(key in node for key in _SAYS_TYPE):
        if "properties" in node:
            node["type"] = "object"
        elif "items" in node or "prefixItems" in node:
            node["type"] = "array"
    if node.get("uniqueItems") is False:  # says nothing, but llguidance would refuse it
        del node["uniqueItems"]
    others = ("additionalProperties", "patternProperties", "unevaluatedProperties", *_LAYERED)
    properties, required = node.get("properties"), node.get("required", [])
    if isinstance(properties, dict) and isinstance(required, list) and not any(key in node for key in others):
        may_close &= all(name in properties for name in required)  # else one that is needed could not be there
        if may_close:
            node["additionalProperties"] = False
    types = node.get("type")
    if types == "integer" or (isinstance(types, list) and "integer" in types and "number" not in types):
        if "minimum" not in node and "exclusiveMinimum" not in node:
            node["minimum"] = min(-MAX_INTEGER, _bound(node, "maximum"), _bound(node, "exclusiveMaximum") - 1)
        if "maximum" not in node and "exclusiveMaximum" not in node:
            node["maximum"] = max(MAX_INTEGER, _bound(node, "minimum"), _bound(node, "exclusiveMinimum") + 1)


def _bound(node: dict[str, Any], name: str) -> int:
    """A bound that is there, if it is a number; what it should be is llguidance's to say."""
    value = node.get(name, 0)
    return int(value) if isinstance(value, int | float) else 0
