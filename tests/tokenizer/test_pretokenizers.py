"""The table of pre-tokenizers: complete, built, and refused where it must be."""

import json
from importlib.resources import files

import numpy as np
import pytest

from llmkit.errors import TokenizerError
from tests.make_vocab import BYTE, NORMAL
from tests.paths import DATA, need_shared
from tests.tokenizer.vocabs import BYTE_TOKENS, bpe_metadata, changed, loaded, spm_metadata

TABLE = json.loads(files("llmkit.tokenizer").joinpath("pretokenizers.json").read_text("utf-8"))
NAMES = {name: kind for kind in TABLE["kinds"] for name in kind["names"]}
TEXTS = [
    "Hello, World! It's 12345.67€\n\n\tif (x == 'é') {}  ",
    "中文字 한국어 ไทย नमस्ते 🦙👨‍👩‍👧 ǅ ½ ٣\r\n \u3000.",
    "I'LL we're",
]


@need_shared
def test_every_name_of_the_source_runs_or_is_refused() -> None:
    source = json.loads((DATA / "pretokenizers.json").read_text("utf-8"))
    assert set(source) - {"(none)"} == set(NAMES) | set(TABLE["refused"])
    assert not set(NAMES) & set(TABLE["refused"])
    for name, kind in NAMES.items():
        flags = ("byte_level", "ignore_merges", "add_bos")
        assert kind["regexes"] == source[name]["regexes"]
        assert [kind[flag] for flag in flags] == [source[name].get(flag, False) for flag in flags]


@pytest.mark.parametrize("name", sorted(name for name, kind in NAMES.items() if kind["byte_level"]))
def test_byte_level_ones_lose_nothing(name: str) -> None:
    tokenizer = loaded(bpe_metadata([("a", "b")], more=["<b>"], pre=name, bos_token_id=257))
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_one_without_bytes_writes_spaces_as_spm_does() -> None:
    words = ["▁", *"abcH\n", "ab", "▁H", "\n\n"]
    merges = ["a b", "▁ H", "\n \n"]
    types = np.array([BYTE] * 256 + [NORMAL] * len(words), dtype=np.int32)
    changes = {"pre": "sarvam-moe", "tokens": [*BYTE_TOKENS, *words], "merges": merges, "token_type": types}
    tokenizer = loaded(changed(bpe_metadata(), changes))
    ids = tokenizer.encode("ab Hé\n\n")
    assert [tokenizer.piece_bytes(id) for id in ids] == [b"ab", b" H", b"\xc3", b"\xa9", b"\n\n"]
    assert tokenizer.decode(ids) == "ab Hé\n\n"


def refusal(**keys: object) -> TokenizerError:
    with pytest.raises(TokenizerError) as caught:
        loaded(bpe_metadata(**keys))  # type: ignore[arg-type]
    return caught.value


def test_case_5_no_name_is_no_guess() -> None:
    error = refusal(pre=None)
    assert "does not name its pre-tokenizer" in error.message
    assert "gguf-new-metadata --pre-tokenizer" in error.hint


def test_case_5_an_unknown_name_is_refused_with_the_nearest() -> None:
    error = refusal(pre="llama-bpee")
    assert "unknown pre-tokenizer 'llama-bpee'" in error.message
    assert "Did you mean llama-bpe?" in error.hint
    assert "qwen2" in error.hint
    assert "Did you mean" not in refusal(pre="§").hint
    assert "unknown pre-tokenizer ''" in refusal(pre="").message


@pytest.mark.parametrize("name", sorted(TABLE["refused"]))
def test_those_that_no_regex_expresses_are_refused_by_name(name: str) -> None:
    assert f"the pre-tokenizer {name} does not run in llmkit: it {TABLE['refused'][name]}" in refusal(pre=name).message


@pytest.mark.parametrize("model", ["bert", "t5", "rwkv", "plamo2", "gemma4", "hybriddna", "whitespace", "x" * 1000])
def test_other_tokenizer_models_are_refused_by_name(model: str) -> None:
    error = refusal(model=model)
    assert model[:20] in error.message
    assert len(error.message) < 300
    assert "gpt2" in error.hint


@pytest.mark.parametrize("model", ["none", "no_vocab", "test", None])
def test_files_without_a_tokenizer_say_so(model: str | None) -> None:
    error = refusal(model=model)
    assert "holds no tokenizer" in error.message
    assert "--ids" in error.hint


def test_spm_needs_no_pre_tokenizer() -> None:
    assert loaded(spm_metadata(["a"], pre="anything")).n_vocab == 260
