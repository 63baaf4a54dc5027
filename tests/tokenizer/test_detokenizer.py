"""Ids to text: whole characters, U+FFFD for what is none, the same streamed and at once."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmkit.files.gguf_reader import open_gguf
from llmkit.tokenizer import Tokenizer, load_tokenizer
from tests.tokenizer.vocabs import bpe_metadata, loaded, spm_metadata

SPM = loaded(spm_metadata(["a", "▁", "▁a", "é", "中", "▁▁"]))
BPE = loaded(bpe_metadata([("Ġ", "a"), ("Ã", "©"), ("ä", "¸")], more=["<|end|>"]))
BOTH = [SPM, BPE]


def streamed(tokenizer: Tokenizer, ids: list[int], **options: bool) -> list[str]:
    stream = tokenizer.stream(**options)
    return [*map(stream.push, ids), stream.finish()]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(BOTH), st.lists(st.integers(0, 270), max_size=40), st.booleans(), st.booleans())
def test_streamed_text_is_the_text(tokenizer: Tokenizer, ids: list[int], special: bool, at_start: bool) -> None:
    pieces = streamed(tokenizer, ids, special=special, at_start=at_start)
    assert "".join(pieces) == tokenizer.decode(ids, special=special, at_start=at_start)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(BOTH), st.lists(st.integers(0, 270), max_size=40))
def test_invalid_bytes_become_one_replacement_for_each_maximal_part(tokenizer: Tokenizer, ids: list[int]) -> None:
    raw = b"".join(map(tokenizer.piece_bytes, ids))
    assert "".join(streamed(tokenizer, ids)) == raw.decode("utf-8", "replace")


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(BOTH), st.text(max_size=40))
def test_decoding_what_was_encoded_gives_the_text(tokenizer: Tokenizer, text: str) -> None:
    """Of U+2581 SPM makes a space: it writes spaces so."""
    expected = text.replace("▁", " ") if tokenizer is SPM else text
    assert tokenizer.decode(tokenizer.encode(text, parse_special=False)) == expected


def test_a_character_is_held_back_until_it_is_whole() -> None:
    llama = [3 + byte for byte in "🦙".encode()]
    assert streamed(SPM, [*llama, 259]) == ["", "", "", "🦙", "a", ""]


def test_an_incomplete_character_is_given_at_the_end() -> None:
    llama = [3 + byte for byte in "🦙".encode()]
    assert streamed(SPM, llama[:3]) == ["", "", "", "\ufffd"]
    assert streamed(SPM, [*llama[:2], 259]) == ["", "", "\ufffda", ""]
    assert streamed(SPM, [3 + 0xFF, 3 + 0xC0, 3 + 0x80]) == ["\ufffd", "\ufffd", "\ufffd", ""]


def test_a_stream_may_go_on_after_its_end() -> None:
    stream = SPM.stream()
    assert stream.push(3 + 0xF0) + stream.finish() == "\ufffd"
    assert stream.push(259) + stream.finish() == "a"


def test_generated_text_keeps_its_leading_space() -> None:
    """A prompt `x` and the answer `▁a` are `x a`; only a text's own first space is SPM's."""
    assert "".join(streamed(SPM, [261])) == " a"
    assert SPM.decode([261]) == "a"
    assert SPM.decode([1, 261, 261]) == "a a"
    assert SPM.decode([1, 261], at_start=False) == " a"
    assert SPM.decode([264]) == " "


def test_no_space_is_taken_where_none_was_put() -> None:
    tokenizer = loaded(spm_metadata(["a", "▁", "▁a"], add_space_prefix=False))
    assert tokenizer.decode(tokenizer.encode(" a")) == " a"
    assert BPE.decode(BPE.encode(" a")) == " a"


def test_control_tokens_are_shown_only_when_asked_for() -> None:
    assert SPM.decode([1, 261, 2]) == "a"
    assert SPM.decode([1, 261, 2], special=True) == "<s>a</s>"
    assert "".join(streamed(SPM, [1, 261, 2], special=True)) == "<s> a</s>"
    assert SPM.piece_bytes(0) == b""
    assert SPM.piece_bytes(0, special=True) == b"<unk>"


@pytest.mark.parametrize("tokenizer", BOTH)
def test_an_id_outside_the_vocabulary_is_nothing(tokenizer: Tokenizer) -> None:
    """Models are padded: a row of the output may have no token."""
    assert tokenizer.piece_bytes(tokenizer.n_vocab) == tokenizer.piece_bytes(-1) == b""
    assert tokenizer.decode([-1, 10**9]) == ""


def test_unused_tokens_are_never_shown() -> None:
    import numpy as np

    metadata = spm_metadata(["a", "b"])
    types = np.array(metadata["tokenizer.ggml.token_type"])
    types[260] = 5
    tokenizer = loaded({**metadata, "tokenizer.ggml.token_type": types})
    assert tokenizer.piece_bytes(260, special=True) == b""


def test_streams_of_a_real_model(real_model: Callable[[str], Path]) -> None:
    with open_gguf(real_model("smollm2-135m")) as gguf:
        tokenizer = load_tokenizer(gguf)

    @settings(max_examples=100, deadline=None)
    @given(st.lists(st.integers(0, tokenizer.n_vocab - 1), max_size=60))
    def streams(ids: list[int]) -> None:
        assert "".join(streamed(tokenizer, ids)) == tokenizer.decode(ids)

    streams()
