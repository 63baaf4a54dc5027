"""What ends a text, what is added to one, and what the file leaves unsaid."""

from typing import Any

import numpy as np
import pytest

from llmkit.tokenizer import Tokenizer
from tests.make_vocab import CONTROL, NORMAL
from tests.tokenizer.vocabs import USER_DEFINED, bpe_metadata, loaded, spm_metadata

EOG = [
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|flush|>", "<end_of_turn>", "<|endoftext|>", "</s>",
    "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>",
    "<｜end▁of▁sentence｜>", "[e~[", "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]", "<|fim_repo|>",
    "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>", "<|file_sep|>",
]  # fmt: skip


def bpe(more: list[str], types: list[int] | None = None, **keys: Any) -> Tokenizer:
    """A vocabulary of bytes and `more`, control tokens unless `types` says otherwise. The id of a byte is the byte."""
    metadata = bpe_metadata(more=more, **keys)
    token_type = np.array([NORMAL] * 256 + (types or [CONTROL] * len(more)), dtype=np.int32)
    return loaded({**metadata, "tokenizer.ggml.token_type": token_type})


@pytest.mark.parametrize("text", EOG)
def test_texts_that_end_a_generation(text: str) -> None:
    assert bpe(["<a>", text, "<b>"]).eog_ids == {257}


@pytest.mark.parametrize("text", EOG)
def test_they_are_control_tokens_whatever_the_file_says(text: str) -> None:
    tokenizer = bpe([text], [NORMAL])
    assert tokenizer.piece_bytes(256) == b""
    assert tokenizer.piece_bytes(256, special=True) == text.encode()
    assert tokenizer.encode(text) == [256]


@pytest.mark.parametrize("text", ["<|im_start|>", "<s>", "<|eot|>", "<|fim_prefix|>", "<|fim_middle|>"])
def test_others_do_not_end_it(text: str) -> None:
    assert bpe([text]).eog_ids == frozenset()


@pytest.mark.parametrize("key", ["eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep"])
def test_ids_that_the_file_names_end_it(key: str) -> None:
    named: dict[str, Any] = {f"{key}_token_id": 257}
    assert bpe(["<a>", "<b>"], **named).eog_ids == {257}


def test_an_infill_token_that_the_file_names_keeps_others_from_being_guessed() -> None:
    assert bpe(["<a>", "<PAD>"], fim_pad_token_id=256).eog_ids == {256}


def test_harmony_goes_on_after_end() -> None:
    """gpt-oss: <|end|> ends a part of the answer; the answer ends with <|return|> or <|call|>."""
    tokenizer = bpe(["<|end|>", "<|return|>", "<|call|>", "<|channel|>"])
    assert tokenizer.eog_ids == {257, 258}
    assert tokenizer.piece_bytes(256) == b"<|end|>"
    assert tokenizer.piece_bytes(259) == b"<|channel|>"
    assert bpe(["<|end|>", "<|return|>"]).eog_ids == {256, 257}


# What is added to a text


def test_spm_adds_bos_and_a_space_unless_the_file_says_no() -> None:
    pieces = ["a", "▁", "▁a"]
    a, spaced = 259, 261
    assert loaded(spm_metadata(pieces)).encode("a") == [1, spaced]
    assert loaded(spm_metadata(pieces, add_bos_token=False)).encode("a") == [spaced]
    assert loaded(spm_metadata(pieces, add_space_prefix=False)).encode("a") == [1, a]
    assert loaded(spm_metadata(pieces, add_eos_token=True)).encode("a") == [1, spaced, 2]
    assert loaded(spm_metadata(pieces)).encode("a", add_special=False) == [spaced]
    assert loaded(spm_metadata(pieces)).encode("") == [1]
    assert loaded(spm_metadata(pieces, bos_token_id=2)).encode("") == [2]


def test_spm_adds_a_space_after_each_special_token() -> None:
    tokenizer = loaded(spm_metadata(["a", "▁", "▁a"]))
    assert tokenizer.encode("a</s>a", add_special=False) == [261, 2, 261]


def test_bpe_adds_what_its_pre_tokenizer_implies_unless_the_file_says_otherwise() -> None:
    bos: dict[str, Any] = {"bos_token_id": 256}
    assert bpe(["<b>"], pre="gpt-2", **bos).encode("a") == [97]
    assert bpe(["<b>"], pre="llama-bpe", **bos).encode("a") == [256, 97]
    assert bpe(["<b>"], pre="llama-bpe", add_bos_token=False, **bos).encode("a") == [97]
    assert bpe(["<b>"], pre="gpt-2", add_bos_token=True, **bos).encode("a") == [256, 97]
    assert bpe(["<b>", "<e>"], eos_token_id=257, add_eos_token=True).encode("a") == [97, 257]


def test_a_text_with_bos_gets_no_second_one() -> None:
    tokenizer = loaded(spm_metadata(["a", "▁", "▁a"], add_eos_token=True))
    assert tokenizer.encode("<s>a</s>") == [1, 261, 2]
    assert tokenizer.encode("<s>a", parse_special=False)[0] == 1
    assert tokenizer.encode("<s><s>a")[:3] == [1, 1, 261]


def test_bpe_does_not_guess_ids() -> None:
    """llama.cpp takes 11 for BOS and EOS where the file names none: a comma would end a text."""
    tokenizer = bpe(["<b>"])
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.eog_ids) == (None, None, frozenset())


def test_all_ones_means_none() -> None:
    assert bpe(["<b>"], bos_token_id=0xFFFFFFFF).bos_id is None
    assert loaded(spm_metadata(["a"], bos_token_id=0xFFFFFFFF)).bos_id == 1


def test_ignore_merges_takes_a_word_that_is_a_token_as_it_is() -> None:
    """llama-bpe: `abc` has no merges but is a token. gpt-2 spells it."""
    assert bpe(["abc"], [NORMAL], pre="llama-bpe", add_bos_token=False).encode("abc") == [256]
    assert bpe(["abc"], [NORMAL], pre="gpt-2").encode("abc") == [97, 98, 99]


def test_remove_extra_whitespaces_changes_nothing() -> None:
    """As in llama.cpp: only its t5 tokenizer reads the key."""
    tokenizer = loaded(spm_metadata(["a", "▁", "▁a"], remove_extra_whitespaces=True))
    assert tokenizer.encode("a  a", add_special=False) == [261, 260, 261]


# Blanks beside special tokens, by the name of the model


def named(general_name: str, **keys: Any) -> Tokenizer:
    metadata = bpe_metadata(more=["<|user|>", "<s>", "<mask>", "[MASK]"], **keys)
    types = np.array([NORMAL] * 256 + [CONTROL, CONTROL, USER_DEFINED, USER_DEFINED], dtype=np.int32)
    return loaded({**metadata, "general.name": general_name, "tokenizer.ggml.token_type": types})


@pytest.mark.parametrize("name", ["Phi-3 mini", "my phi3"])
def test_phi_3_drops_blanks_behind_special_tokens(name: str) -> None:
    assert named(name).encode("<|user|>\n a<s> ") == [256, 97, 257, 32]
    assert named("other").encode("<|user|>\na") == [256, 10, 97]


def test_masks_drop_the_blanks_before_them() -> None:
    assert named("x", pre="jina-v2-code").encode("a <mask>") == [97, 258]
    assert named("modern-bert x").encode("a [MASK]") == [97, 259]
    assert named("x").encode("a <mask>") == [97, 32, 258]


def test_what_is_never_chosen() -> None:
    assert bpe(["<x>", "<y>"]).suppressed_ids == frozenset()
    assert bpe(["<x>", "<y>"], suppress_tokens=np.array([5, 3, 5], dtype=np.int32)).suppressed_ids == {3, 5}
