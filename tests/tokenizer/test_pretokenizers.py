"""The table of pre-tokenizers: complete, built, and refused where it must be."""

import json
from importlib.resources import files

import numpy as np
import pytest
from tokenizers import Regex, pre_tokenizers

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
        flags = ("byte_level", "ignore_merges", "add_bos", "add_sep")
        assert kind["regexes"] == source[name]["regexes"] or "llama_cpp" in kind, name
        assert [kind[flag] for flag in flags] == [source[name].get(flag, False) for flag in flags]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("gpt-4o", "ДокументПродажи camelCase", ["Документ", "Продажи", " camel", "Case"]),
        ("gpt-4o", "ÉtéÀ e\u0301a I'LL", ["Été", "À", " e\u0301a", " I'LL"]),
        ("llama4", "1234 a/b//", ["123", "4", " a", "/b", "//"]),
        ("tekken", "ΑθήναΠόλη 12 I'll", ["Αθήνα", "Πόλη", " ", "1", "2", " I", "'ll"]),
        ("kimi-k2", "camelCase中文ab 한국a漢", ["camel", "Case", "中文", "ab", " 한국a", "漢"]),
        ("afmoe", "1234567 12 123456a ١٢٣٤", ["1", "234", "567", " ", "12", " ", "123", "456", "a", " ", "١", "٢٣٤"]),
        ("afmoe", "中文ab한국!a !a", ["中文", "ab", "한국", "!a", " !", "a"]),
        ("tiny_aya", "1234 1234a aB", ["1", "234", " ", "123", "4", "a", " a", "B"]),
        ("youtu", "camelCase中文", ["camel", "Case", "中文"]),
        ("superbpe", "1234 ١٢٣٤", ["1", "234", " ", "١", "٢٣٤"]),
        ("deepseek-coder", "a\u2003b\u00a0c", ["a", "\u2003", "b", "\u00a0c"]),
    ],
)
def test_words_as_the_models_own_tokenizers_cut_them(name: str, text: str, words: list[str]) -> None:
    """What `llama_cpp` in the table says that llama.cpp does otherwise (checked with its llama-tokenize), and that
    the functions it has for afmoe and kimi-k2 are patterns here.
    """
    cut = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(regex), behavior="isolated") for regex in NAMES[name]["regexes"]]
    )
    assert [word for word, _ in cut.pre_tokenize_str(text)] == words


@pytest.mark.parametrize("name", sorted(name for name, kind in NAMES.items() if kind["byte_level"]))
def test_byte_level_ones_lose_nothing(name: str) -> None:
    ids = {"bos_token_id": 257, "seperator_token_id": 257}
    tokenizer = loaded(bpe_metadata([("a", "b")], more=["<b>"], pre=name, **ids))
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


@pytest.mark.parametrize("model", ["t5", "rwkv", "plamo2", "gemma4", "hybriddna", "whitespace", "x" * 1000])
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
