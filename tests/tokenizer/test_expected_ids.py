"""Ids that others expect: llama.cpp's files of texts and ids, its greedy runs, and texts from bug reports."""

import json
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from llmkit.errors import TokenizerError
from llmkit.files.gguf_reader import open_gguf
from llmkit.tokenizer import Tokenizer, load_tokenizer
from tests.paths import DATA, VOCAB, need_shared

pytestmark = need_shared

NAMES = ["bert-bge", "deepseek-coder", "falcon", "gpt-2", "llama-bpe", "llama-spm", "phi-3", "qwen2", "refact"]
GREEDY = {
    "smollm2-135m": "SmolLM2-135M-Instruct.Q4_1",
    "gemma-3-270m": "gemma-3-270m-q4_k_m",
    "qwen2.5-coder-0.5b": "qwen2.5-coder-0.5b-instruct-q4_k_m",
}

_loaded: dict[str, Tokenizer] = {}


def vocabulary(name: str) -> Tokenizer:
    if name not in _loaded:
        with open_gguf(VOCAB / f"ggml-vocab-{name}.gguf") as gguf:
            _loaded[name] = load_tokenizer(gguf)
    return _loaded[name]


def pairs(name: str) -> list[tuple[str, list[int]]]:
    """The texts and the ids of one vocabulary. Newlines are taken as they are: some texts hold carriage returns."""
    texts = (VOCAB / f"ggml-vocab-{name}.gguf.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")[:-1]
    lines = (VOCAB / f"ggml-vocab-{name}.gguf.out").read_text().split("\n")[: len(texts)]
    assert len(texts) == len(lines) > 40
    return [(text, [int(id) for id in line.split()]) for text, line in zip(texts, lines, strict=True)]


@pytest.mark.parametrize("name", NAMES)
def test_ids_are_those_of_llama_cpp(name: str) -> None:
    tokenizer = vocabulary(name)
    for text, ids in pairs(name):
        assert tokenizer.encode(text, add_special=False, parse_special=False) == ids, text


LOSSLESS = [name for name in NAMES if name != "bert-bge"]


@pytest.mark.parametrize("name", LOSSLESS)
def test_decoding_gives_the_text_back(name: str) -> None:
    tokenizer = vocabulary(name)
    for text, _ in pairs(name):
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("name", list(GREEDY))
def test_prompts_and_answers_of_the_real_models(name: str, real_model: Callable[[str], Path]) -> None:
    with open_gguf(real_model(name)) as gguf:
        tokenizer = load_tokenizer(gguf)
    runs = json.loads((DATA / "greedy" / "llamacpp.json").read_text())[GREEDY[name]]
    assert len(runs) == 10
    for run in runs:
        assert tokenizer.encode(run["prompt"]) == run["prompt_ids"]
        assert tokenizer.decode(run["output_ids"], at_start=False) == run["text"]


def test_case_1_spm_leading_space_and_byte_fallback() -> None:
    ids = [1, 910, 338, 29871, 243, 162, 169, 156, 29889, 8223]
    assert vocabulary("llama-spm").encode("This is 🦙.cpp") == ids


def test_case_2_a_word_after_a_special_token_gets_the_space_that_the_file_declares() -> None:
    """`<s>G` is <s> and ▁G (402): tokenizer.ggml.add_space_prefix is true by default, and holds after <s> too."""
    tokenizer = vocabulary("llama-spm")
    assert tokenizer.encode("<s>G", add_special=False) == [1, 402]
    assert tokenizer.piece_bytes(402) == b" G"


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("1234", ["123", "4"]),
        ("12345", ["123", "45"]),
        ("a..b", ["a", "..", "b"]),
        (" = Robert = \n", ["Ġ", "=", "ĠRobert", "Ġ", "=", "ĠĊ"]),
    ],
)
def test_case_3_falcon_cuts_punctuation_and_takes_digits_in_threes(text: str, pieces: list[str]) -> None:
    tokenizer = vocabulary("falcon")
    shown = [tokenizer.piece_bytes(id).decode() for id in tokenizer.encode(text)]
    assert shown == [piece.replace("Ġ", " ").replace("Ċ", "\n") for piece in pieces]


@pytest.mark.parametrize("name", LOSSLESS)
@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_case_4_no_form_of_a_text_is_changed(name: str, form: Literal["NFC", "NFD"]) -> None:
    text = unicodedata.normalize(form, "Hello world! Café déjà vu — 123 😊")
    assert vocabulary(name).decode(vocabulary(name).encode(text)) == text


def test_tokens_that_end_a_text() -> None:
    """What llama.cpp b11434 prints as its EOG tokens for these files."""
    assert vocabulary("llama-bpe").eog_ids == {128001, 128009}
    assert vocabulary("llama-spm").eog_ids == {2}
    assert vocabulary("phi-3").eog_ids == {2, 32000, 32007}
    assert vocabulary("qwen2").eog_ids == {128247, 151643, 151645}
    assert vocabulary("falcon").eog_ids == {11}
    assert vocabulary("refact").eog_ids == {0, 4, 18}


def test_files_with_ids_only_are_refused_for_text() -> None:
    with open_gguf(DATA / "tiny" / "llama-dense.gguf") as gguf, pytest.raises(TokenizerError, match="is test"):
        load_tokenizer(gguf)


def test_word_piece_puts_cls_before_and_sep_behind() -> None:
    tokenizer = vocabulary("bert-bge")
    assert tokenizer.encode("Hello") == [101, 7592, 102]
    assert tokenizer.encode("Hello [MASK]", parse_special=True) == [101, 7592, 103, 102]
    assert 103 not in tokenizer.encode("Hello [MASK]", parse_special=False)
    assert tokenizer.decode(tokenizer.encode("Unaffordable café")) == "unaffordable cafe"


def test_a_512_token_vocabulary_tells_its_story() -> None:
    with open_gguf(DATA / "stories260K.gguf") as gguf:
        tokenizer = load_tokenizer(gguf)
    assert tokenizer.encode("Once upon a time") == [1, 403, 407, 261, 378]
