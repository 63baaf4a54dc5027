"""WordPiece against BERT's own tokenizer of the `tokenizers` library, and vocabularies that are no such ones."""

from pathlib import Path

import numpy as np
import pytest

from llmkit.errors import TokenizerError
from llmkit.files.gguf_reader import open_gguf
from llmkit.tokenizer import load_tokenizer
from tests.make_vocab import CONTROL, NORMAL
from tests.paths import VOCAB, need_shared
from tests.tokenizer.vocabs import KEY, changed, loaded

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
WORDS = ["▁un", "aff", "able", "▁a", "▁é", "▁e", "▁Hello", "▁hello", "▁,", "▁中", "x"]


def metadata(**keys: object) -> dict[str, object]:
    """What a converter writes for a small BERT."""
    types = np.array([CONTROL] * len(SPECIAL) + [NORMAL] * len(WORDS), np.int32)
    found: dict[str, object] = {KEY + "model": "bert", KEY + "tokens": [*SPECIAL, *WORDS], KEY + "token_type": types}
    ids = {"unknown_token_id": 1, "cls_token_id": 2, "seperator_token_id": 3, "padding_token_id": 0}
    return changed(found, ids | keys)


def pieces(text: str, **keys: object) -> list[str]:
    tokenizer = loaded(metadata(**keys))
    return [([*SPECIAL, *WORDS])[id] for id in tokenizer.encode(text, add_special=False)]


def test_the_longest_piece_first_and_a_word_as_a_whole() -> None:
    assert pieces("unaffable") == ["▁un", "aff", "able"]
    assert pieces("unaffab un") == ["[UNK]", "▁un"]
    assert pieces("a,a中a") == ["▁a", "▁,", "▁a", "▁中", "▁a"]
    assert pieces("") == []


def test_capitals_and_accents_go_unless_the_file_keeps_them() -> None:
    assert pieces("Hello é") == ["▁hello", "▁e"]
    assert pieces("Hello é", **{KEY + "normalizer.lowercase": False}) == ["▁Hello", "▁é"]
    assert pieces("Hello é", **{KEY + "normalizer.strip_accents": False}) == ["▁hello", "▁é"]


def test_a_long_word_is_unknown_as_in_bert() -> None:
    assert pieces("a" + "x" * 99) == ["▁a", *["x"] * 99]
    assert pieces("a" + "x" * 100) == ["[UNK]"]


def test_what_the_file_says_is_added() -> None:
    assert loaded(metadata()).encode("a") == [2, 7, 3]
    assert loaded(metadata(add_bos_token=False, add_sep_token=False)).encode("a") == [7]


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"unknown_token_id": 99}, "unknown_token_id is 99"),
        ({"unknown_token_id": None}, "needs tokenizer.ggml.unknown_token_id"),
        ({"cls_token_id": None}, "BOS"),
        ({"seperator_token_id": None}, "SEP"),
        ({KEY + "normalizer.lowercase": "yes"}, "normalizer.lowercase"),
    ],
)
def test_what_is_missing_or_wrong_is_named(keys: dict[str, object], says: str) -> None:
    with pytest.raises(TokenizerError, match=says):
        loaded(metadata(**keys))


@need_shared
def test_ids_are_those_of_bert_s_own_tokenizer() -> None:
    """`BertWordPieceTokenizer` with the vocabulary as BERT writes it, over texts with everything in them."""
    from tokenizers.implementations import BertWordPieceTokenizer

    path: Path = VOCAB / "ggml-vocab-bert-bge.gguf"
    with open_gguf(path) as gguf:
        tokens, ours = gguf.strings(KEY + "tokens").to_list(), load_tokenizer(gguf)
    special = {0, 100, 101, 102, 103}
    vocab = {
        t if i in special or t.startswith("[unused") else t[1:] if t[0] == "▁" else f"##{t}": i
        for i, t in enumerate(tokens)
    }
    theirs = BertWordPieceTokenizer(vocab, lowercase=True)
    texts = (VOCAB / f"{path.name}.inp").read_text().split("\n__ggml_vocab_test__\n")
    for text in [*texts, "Ünïcödé\u00a0ﬀ İstanbul ẞ", "日本語 한국어 ไทย", "x" * 101, "a\x00b\ufffdc\x07d", "👨‍👩‍👧"]:
        assert ours.encode(text, parse_special=False) == theirs.encode(text).ids, text
