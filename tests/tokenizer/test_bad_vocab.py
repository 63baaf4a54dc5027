"""Malformed tokenizers: a TokenizerError that says what is wrong, never a crash of the library."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmkit.errors import LlmkitError, TokenizerError
from llmkit.tokenizer import library
from llmkit.tokenizer.library import WordModel, named_failures
from tests.tokenizer.vocabs import KEY, bpe_metadata, loaded, spm_metadata

N = 262
SPM = spm_metadata(["a", "▁", "▁a"])
BPE = bpe_metadata([("a", "b")], more=["<e>"])


def refusal(metadata: dict[str, object]) -> TokenizerError:
    with pytest.raises(TokenizerError) as caught:
        loaded(metadata)
    assert "vocab.gguf" in caught.value.message, "the message names the file"
    assert caught.value.hint
    return caught.value


def with_key(base: dict[str, object], key: str, value: object) -> dict[str, object]:
    return {**base, KEY + key: value}


def without(base: dict[str, object], key: str) -> dict[str, object]:
    return {name: value for name, value in base.items() if name != KEY + key}


ZEROS = np.zeros(N, dtype=np.float32)
ONES = np.ones(N, dtype=np.int32)
NOT_A_NUMBER = np.full(N, np.nan, dtype=np.float32)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        # case 6
        ("scores", np.zeros(N, dtype=np.uint8), "scores holds uint8"),
        ("scores", np.zeros(N, dtype=np.float64), "scores holds float64"),
        ("scores", ZEROS[:-1], "scores has 261 entries for 262 tokens"),
        ("scores", np.zeros(N + 1, dtype=np.float32), "scores has 263 entries for 262 tokens"),
        ("scores", NOT_A_NUMBER, "scores: entry 0 is not a number"),
        ("scores", ["x"] * N, "scores' has the type ARRAY"),
        ("scores", 1.0, "scores' has the type FLOAT32"),
        ("token_type", ZEROS, "token_type holds float32"),
        ("token_type", np.ones(N, dtype=np.uint32), "token_type holds uint32"),
        ("token_type", ONES[:-1], "token_type has 261 entries for 262 tokens"),
        ("token_type", np.ones(N + 1, dtype=np.int32), "token_type has 263 entries for 262 tokens"),
        ("token_type", [True] * N, "token_type holds bool"),
        ("tokens", ["a"] * N, "tokens 0 and 261 are both 'a'"),
        ("tokens", [], "vocabulary is empty"),
        ("tokens", ONES, "tokens' has the type ARRAY"),
        ("tokens", "a", "tokens' has the type STRING"),
        ("tokens", [b"\xff", *(f"{i}" for i in range(N - 1))], "entry 0 is not valid UTF-8"),
        ("token_type", np.full(N, 6, dtype=np.int32), "token 0 is a byte token, but '<unk>'"),
        ("model", 1, "model' has the type UINT32"),
        ("suppress_tokens", np.array([N], dtype=np.int32), "suppress_tokens names tokens outside"),
        ("suppress_tokens", np.array([-1], dtype=np.int32), "suppress_tokens names tokens outside"),
        ("suppress_tokens", np.array([1.0], dtype=np.float32), "suppress_tokens holds float32"),
        ("bos_token_id", N, "bos_token_id is 262, but the vocabulary has 262 tokens"),
        ("eos_token_id", 10**9, "eos_token_id is 1000000000"),
        ("unknown_token_id", N, "unknown_token_id is 262"),
        ("eot_token_id", N, "eot_token_id is 262"),
        ("eom_token_id", N, "eom_token_id is 262"),
        ("fim_pad_token_id", N, "fim_pad_token_id is 262"),
        ("prefix_token_id", N, "prefix_token_id is 262"),
        ("bos_token_id", "1", "bos_token_id' has the type STRING"),
        ("bos_token_id", -1, "bos_token_id' is -1"),
        ("add_bos_token", 1, "add_bos_token' has the type UINT32"),
        ("add_eos_token", "yes", "add_eos_token' has the type STRING"),
        ("add_space_prefix", 1, "add_space_prefix' has the type UINT32"),
    ],
)
def test_spm_metadata_that_make_no_sense(key: str, value: object, said: str) -> None:
    assert said in refusal(with_key(SPM, key, value)).message


@pytest.mark.parametrize("key", ["model", "tokens", "scores"])
def test_spm_needs(key: str) -> None:
    assert f"{KEY}{key}" in refusal(without(SPM, key)).message


@pytest.mark.parametrize("key", ["model", "tokens", "merges", "pre"])
def test_bpe_needs(key: str) -> None:
    assert f"{KEY}{key}" in refusal(without(BPE, key)).message


@pytest.mark.parametrize(
    ("merges", "said"),
    [
        (["ab"], "'ab' is no pair"),
        (["a b", ""], "'' is no pair"),
        (["a "], "'a ' is no pair"),
        ([" "], "' ' is no pair"),
        (["a xyz"], "'a' and 'xyz' need 'xyz', which is no token"),
        (["xyz a"], "need 'xyz', which is no token"),
        (["a c"], "need 'ac', which is no token"),
        (["a b c"], "need 'b c', which is no token"),
        ([b"a \xff"], "not valid UTF-8"),
        (np.ones(3, dtype=np.int32), "merges' has the type ARRAY"),
    ],
)
def test_merges_that_make_no_sense(merges: object, said: str) -> None:
    assert said in refusal(with_key(BPE, "merges", merges)).message


def test_bpe_scores_are_checked_though_nobody_needs_them() -> None:
    assert "scores holds uint8" in refusal(with_key(BPE, "scores", np.zeros(258, dtype=np.uint8))).message


def test_a_token_to_add_that_is_not_named() -> None:
    assert "bos_token_id does not say which" in refusal(with_key(BPE, "add_bos_token", True)).message
    assert "eos_token_id does not say which" in refusal(with_key(BPE, "add_eos_token", True)).message
    assert "bos_token_id does not say which" in refusal(with_key(BPE, "pre", "llama-bpe")).message


# Taken as llama.cpp takes them


def test_merges_twice_count_the_first_time() -> None:
    once = [("a", "b"), ("b", "c"), ("a", "bc")]
    tokenizer = loaded(with_key(bpe_metadata(once), "merges", ["a b", "b c", "a bc", "a b"]))
    assert [tokenizer.piece_bytes(id) for id in tokenizer.encode("abc")] == [b"ab", b"c"]


def test_an_empty_token_gets_a_name() -> None:
    tokens = [*SPM[KEY + "tokens"][:-1], ""]  # type: ignore[index]
    tokenizer = loaded(with_key(SPM, "tokens", tokens))
    assert tokenizer.piece_bytes(261) == b"[EMPTY_261]"


def test_an_unknown_type_makes_a_token_that_is_never_shown() -> None:
    types = np.array(SPM[KEY + "token_type"])
    types[261] = 99
    assert loaded(with_key(SPM, "token_type", types)).piece_bytes(261, special=True) == b""


def test_without_types_all_tokens_are_words() -> None:
    assert loaded(without(SPM, "token_type")).piece_bytes(1) == b"<s>"


def test_whole_number_scores_are_taken() -> None:
    scores = np.arange(N, dtype=np.int32)
    assert loaded(with_key(SPM, "scores", scores)).encode("a", add_special=False) == [261]


def test_without_byte_tokens_the_unknown_token_stands_for_what_is_unknown() -> None:
    metadata: dict[str, object] = {
        KEY + "model": "llama", KEY + "tokens": ["<unk>", "<s>", "</s>", "▁", "a"],
        KEY + "scores": np.zeros(5, dtype=np.float32), KEY + "token_type": np.array([2, 3, 3, 1, 1], dtype=np.int32),
    }  # fmt: skip
    assert loaded(metadata).encode("aéé a") == [1, 3, 4, 0, 3, 4]


# The library


LONE = f"{chr(0xDC80)}a{chr(0xDFFF)}{chr(0xD800)}"


@pytest.mark.parametrize("text", ["\0", "a\0b", LONE, "\ufffd", "\U0010ffff", "\r\n\u2028\x85"])
@pytest.mark.parametrize("base", [SPM, BPE])
def test_any_str_is_taken(base: dict[str, object], text: str) -> None:
    """A lone surrogate is U+FFFD: one each."""
    tokenizer = loaded(base)
    expected = "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in text)
    assert tokenizer.decode(tokenizer.encode(text)) == expected


def test_several_threads_at_once() -> None:
    tokenizer = loaded(BPE)
    texts = [f"ab {'ab' * n} <e>" for n in range(200)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(tokenizer.encode, texts)) == [tokenizer.encode(text) for text in texts]


class FailingLibrary:
    """Fails as the library does: with an Exception, or with a panic of Rust's, which is none."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def encode_batch_fast(self, texts: Sequence[str], **options: Any) -> NoReturn:
        raise self.error


PanicException = type("PanicException", (BaseException,), {})


@pytest.mark.parametrize("kind", [Exception, PanicException, OverflowError])
def test_a_failing_library_is_an_error_with_a_name(kind: type[BaseException]) -> None:
    words = WordModel(FailingLibrary(kind("no")), "m.gguf", escape_spaces=False)  # type: ignore[arg-type]
    with pytest.raises(TokenizerError, match=r"m\.gguf: the tokenizer failed on this text: no"):
        words.encode(["a"])


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(), GeneratorExit(), MemoryError()])
def test_what_is_not_the_library_s_passes(error: BaseException) -> None:
    with pytest.raises(type(error)), named_failures("m.gguf", "it failed"):
        raise error


def test_a_regex_that_the_library_cannot_take() -> None:
    from dataclasses import replace

    from llmkit.tokenizer.vocab import read_vocab
    from tests.tokenizer.vocabs import opened

    vocab = read_vocab(opened(BPE))
    assert vocab.pre is not None
    vocab.pre = replace(vocab.pre, regexes=("[",))
    with pytest.raises(TokenizerError, match="pre-tokenizer gpt-2 cannot be built"):
        library.bpe_model(vocab, ["a b"])


anything = st.one_of(
    st.integers(-(2**31), 2**32 - 1), st.floats(allow_nan=True, width=32), st.booleans(), st.text(max_size=5),
    st.lists(st.text(max_size=4), min_size=1, max_size=300), st.lists(st.integers(-3, 300), min_size=1, max_size=300),
)  # fmt: skip
keys = ["model", "pre", "tokens", "scores", "token_type", "merges", "bos_token_id", "eos_token_id", "add_bos_token"]


@settings(max_examples=400, deadline=None)
@given(st.sampled_from([SPM, BPE]), st.dictionaries(st.sampled_from(keys), anything, min_size=1, max_size=3))
def test_any_metadata_load_or_are_refused(base: dict[str, object], changes: dict[str, object]) -> None:
    metadata = {**base, **{KEY + key: value for key, value in changes.items()}}
    try:
        tokenizer = loaded(metadata)
    except LlmkitError:
        return
    tokenizer.decode(tokenizer.encode("Hello <s> 123 é🦙"))
