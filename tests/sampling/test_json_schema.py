"""JSON schemas: the texts they allow satisfy them, and what would not be enforced is refused by name."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from llmkit.engine.generation.generate import StopReason
from llmkit.engine.generation.sampler import Sampler
from llmkit.errors import GrammarError
from llmkit.files.gguf_reader import open_gguf
from llmkit.params import SamplingParams
from llmkit.sampling.grammar import Grammar, GrammarCompiler
from llmkit.tokenizer import Tokenizer, load_tokenizer
from tests.make_models import make_model
from tests.tools.in_process import run_llmkit

ITEM: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("schema") / "m.gguf", tokenizer="bpe")


@pytest.fixture(scope="module")
def tokenizer(path: Path) -> Tokenizer:
    with open_gguf(path) as gguf:
        return load_tokenizer(gguf)


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer)


def bits(grammar: Grammar) -> "np.ndarray[Any, Any]":
    return np.unpackbits(grammar.mask().view(np.uint8), bitorder="little")


def takes(compiler: GrammarCompiler, tokenizer: Tokenizer, schema: Any, text: str) -> bool:
    """Whether the text satisfies the schema's grammar, as a whole."""
    grammar = compiler.from_json_schema(schema)
    for byte in text.encode():
        token = next(id for id in range(tokenizer.n_vocab) if tokenizer.piece_bytes(id) == bytes([byte]))
        if not bits(grammar)[token]:
            return False
        grammar.accept(token)
    return grammar.complete


FITS = [
    ({}, '{"a": [1, 2.5e3, true, null, "x"]}', True),
    (True, "17", True),
    (ITEM, '{"a": 1}', True),
    (ITEM, "{}", False),
    (ITEM, '{"a": 1, "b": 2}', False),
    (ITEM | {"additionalProperties": True}, '{"a": 1, "b": 2}', True),
    (ITEM, '{"a": 9007199254740991}', True),
    (ITEM, '{"a": 10000000000000000}', False),
    (ITEM, '{"a": -9007199254740991}', True),
    ({"type": "integer", "minimum": 10**17}, "100000000000000000", True),
    ({"type": ["integer", "null"]}, "null", True),
    ({"type": "integer", "minimum": 3, "maximum": 11}, "12", False),
    ({"allOf": [ITEM, {"properties": {"b": {"type": "null"}}, "required": ["b"]}]}, '{"a": 1, "b": null}', True),
    ({"anyOf": [ITEM, {"type": "boolean"}]}, "true", True),
    ({"properties": {"a": {}, "b": {}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, '{"b": 1}', True),
    ({"type": "array", "items": {"type": "null"}, "uniqueItems": False}, "[null, null]", True),
    ({"type": "array", "items": {"type": "null"}, "minItems": 1, "maxItems": 2}, "[null, null, null]", False),
    ({"type": "object", "patternProperties": {"^x": {"type": "null"}}}, '{"xa": null}', True),
    ({"type": "object", "patternProperties": {"^x": {"type": "null"}}}, '{"xa": 1}', False),
    ({"$defs": {"n": {"type": "null"}}, "prefixItems": [{"$ref": "#/$defs/n"}], "items": False}, "[null]", True),
    ({"type": "string", "pattern": "^[a-c]+$"}, '"abd"', False),
    ({"type": "string", "format": "date"}, '"2026-02-28"', True),
    ({"type": "string", "format": "date"}, '"2026-02-30"', False),
    ({"const": {"uniqueItems": False}}, '{"uniqueItems": false}', True),
    ({"enum": [1, "é", None]}, '"é"', True),
    ({"type": "object", "properties": {"minimum": {"type": "null"}}}, '{"minimum": null}', True),
    ({"type": "array", "items": {"$ref": "#"}, "maxItems": 1}, "[[[]]]", True),
    ({"type": "object", "properties": {"a": {}}, "required": ["b"]}, '{"b": 1}', True),
    (ITEM | {"minProperties": 1}, '{"a": 1}', True),
    ({"properties": {"a": {"type": "integer"}}}, "1", False),
    ({"properties": {"a": {"type": "integer"}}}, '{"a": 1}', True),
    ({"items": {"type": "integer"}}, "1", False),
    ({"prefixItems": [{"type": "null"}]}, "[null]", True),
]


@pytest.mark.parametrize(("schema", "text", "fits"), FITS)
def test_what_a_schema_takes(
    schema: Any, text: str, fits: bool, compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    before = json.dumps(schema)
    assert takes(compiler, tokenizer, schema, text) == fits
    assert json.dumps(schema) == before, "it belongs to the caller"


NOT_ENFORCED: list[tuple[Any, str]] = [
    ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    ({"contains": {"type": "null"}}, "contains"),
    ({"not": {"type": "null"}}, "not"),
    ({"if": {"type": "null"}, "then": {}, "else": False}, "if"),
    ({"patternProperties": {"^a": {}, "a$": {}}}, "not disjoint"),
    ({"$ref": "https://example.com/a.json"}, "example.com"),
    ({"$ref": "#/nowhere"}, "/nowhere"),
    ({"$dynamicRef": "#a"}, "$dynamicRef"),
    ({"propertyNames": {"maxLength": 3}}, "propertyNames"),
    ({"dependentRequired": {"a": ["b"]}}, "dependentRequired"),
    ({"dependentSchemas": {"a": {}}}, "dependentSchemas"),
    ({"unevaluatedProperties": False}, "unevaluatedProperties"),
    ({"unevaluatedItems": False}, "unevaluatedItems"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
    ({"type": "string", "format": "nosuch"}, "nosuch"),
    ({"type": "string", "pattern": "(?=a)b"}, "regex"),
    ({"type": "nosuch"}, "nosuch"),
    ({"properties": {"a": {"items": {"uniqueItems": True}}}}, "uniqueItems"),
    ({"x-guidance": {"lenient": True}, "uniqueItems": True}, "lenient"),
    ({"minimum": 3, "exclusiveMinimum": True}, "exclusiveMinimum"),
    ({"items": [{}], "prefixItems": [{}]}, "prefixItems"),
    ({"enum": []}, "empty"),
    ({"type": "object", "minProperties": 2}, "minProperties is 2"),
    ({"type": "object", "required": ["a"], "minProperties": 3, "properties": {"a": {}}}, "minProperties is 3"),
    ({"type": "integer", "minimum": 5, "maximum": 4}, "greater than"),
    (False, "nothing satisfies"),
    ({"$ref": "#"}, "nothing satisfies"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "nothing satisfies"),
    ("{", "no JSON"),
    ('{"minimum": NaN}', "NaN"),
    ('{"minimum": 1e999}', "too large"),
    ("[1]", "is an object, or true or false"),
    ('{"minimum": ' + "9" * 5000 + "}", "no JSON"),
]


@pytest.mark.parametrize(("schema", "reason"), NOT_ENFORCED)
def test_what_would_not_be_enforced_is_refused_by_name(schema: Any, reason: str, compiler: GrammarCompiler) -> None:
    with pytest.raises(GrammarError) as caught:
        compiler.from_json_schema(schema)
    assert reason in caught.value.message


def chain(n: int) -> dict[str, Any]:
    links: dict[str, Any] = {f"d{i}": {"type": "array", "items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(n)}
    return {"$ref": "#/$defs/d0", "$defs": links | {f"d{n}": {"type": "null"}}}


HOSTILE: list[tuple[Any, str]] = [
    ("[" * 100_000, "nested too deep"),
    ('{"not":' * 200 + "true" + "}" * 200, "nested more than 64 deep"),
    (" " * (1 << 20) + "{}", "1048576 are allowed"),
    ({"properties": {f"p{i}": {} for i in range(3000)}}, "3000 properties"),
    ({"anyOf": [{}] * 21_000}, "more than 20000 schemas"),
    (
        {"allOf": [{"anyOf": [{"type": "integer", "minimum": i * j} for i in range(10)]} for j in range(12)]},
        "too large",
    ),
]


@pytest.mark.parametrize(("schema", "reason"), HOSTILE)
def test_hostile_schemas_are_refused_in_time(schema: Any, reason: str, compiler: GrammarCompiler) -> None:
    with pytest.raises(GrammarError) as caught:
        compiler.from_json_schema(schema)
    assert reason in caught.value.message


def test_a_long_chain_of_references_does_not_overflow_the_stack(compiler: GrammarCompiler) -> None:
    """3,000 of them end the process where the thread has a usual stack."""
    assert not compiler.from_json_schema(chain(4000)).complete


PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 6},
        "born": {"type": "string", "format": "date"},
        "age": {"type": "integer", "minimum": 1, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "é", None, 1.5]}, "maxItems": 3},
        "more": {"anyOf": [{"type": "boolean"}, {"$ref": "#/$defs/point"}]},
    },
    "required": ["name", "age", "more"],
    "$defs": {"point": {"type": "array", "prefixItems": [{"type": "integer", "maximum": 9, "minimum": 0}] * 2,
                        "items": False, "minItems": 2}},
}  # fmt: skip


def test_texts_of_500_seeds_satisfy_their_schema(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    """Random logits choose among what is allowed, EOG tokens too: what ends is complete and valid."""
    schema = PERSON | {"x-guidance": {"whitespace_flexible": False}}
    template, chance, kinds = compiler.from_json_schema(schema), np.random.default_rng(1), set[str]()
    validator = jsonschema.Draft202012Validator(PERSON, format_checker=jsonschema.FormatChecker())
    for seed in range(500):
        sampler = Sampler(SamplingParams(seed=seed, temp=1.0), tokenizer.eog_ids, tokenizer, template.clone())
        ids, eog = list[int](), False
        while not sampler.finished and not eog:
            ids.append(sampler.sample(chance.normal(0, 2, tokenizer.n_vocab).astype(np.float32)))
            eog = ids[-1] in tokenizer.eog_ids
            assert len(ids) < 300
        value = json.loads(b"".join(tokenizer.piece_bytes(id) for id in ids))
        kinds.update(key for key in value)
        validator.validate(value)
    assert kinds == set(PERSON["properties"])


def test_a_text_that_is_cut_off_says_so(path: Path) -> None:
    args = ("run", "-m", str(path), "-p", "x", "-q", "--json", "-s", "1", "-t", "2", "-c", "256", "-j")
    cut = json.loads(run_llmkit(*args, json.dumps(PERSON), "-n", "5").stdout)
    assert cut["stop_reason"] == StopReason.LIMIT
    with pytest.raises(ValueError):
        json.loads(cut["text"])
    whole = json.loads(run_llmkit(*args, '{"type": "boolean"}', "-n", "20").stdout)
    assert (whole["stop_reason"], json.loads(whole["text"]) in (True, False)) == (StopReason.EOS, True)
