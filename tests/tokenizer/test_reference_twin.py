"""The fast tokenizer gives what the obvious one gives, on random vocabularies and texts, and on real vocabularies."""

import re
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmkit.files.gguf_reader import open_gguf
from llmkit.tokenizer import load_tokenizer
from tests.make_vocab import byte_characters
from tests.paths import VOCAB, need_shared
from tests.tokenizer import reference
from tests.tokenizer.vocabs import bpe_metadata, loaded, opened, spm_metadata

CHARACTERS = "abc▁é"
spm_pieces = st.lists(
    st.text(alphabet="abc▁", min_size=2, max_size=7).filter(lambda piece: piece not in CHARACTERS),
    max_size=40,
    unique=True,
)


@st.composite
def spm_vocabularies(draw: st.DrawFn) -> tuple[list[str], list[float]]:
    """Pieces and their scores, all different, also for characters: in no order, as no training would give them."""
    pieces = [*CHARACTERS, *draw(spm_pieces)]
    order = draw(st.permutations(range(len(pieces))))
    return pieces, [-float(rank) for rank in order]


@settings(max_examples=150, deadline=None)
@given(spm_vocabularies(), st.lists(st.text(alphabet="abc é\n", max_size=40), max_size=8))
def test_spm_on_random_vocabularies(vocabulary: tuple[list[str], list[float]], texts: list[str]) -> None:
    """The merges that were left out as impossible are impossible."""
    pieces, scores = vocabulary
    tokenizer = loaded(spm_metadata(pieces, scores))
    ids = {piece: 259 + i for i, piece in enumerate(pieces)} | {f"<0x{b:02X}>": 3 + b for b in range(256)}
    by_id = [0.0] * 259 + scores
    for text in texts:
        escaped = (" " + text).replace(" ", "▁") if text else ""
        assert tokenizer.encode(text, add_special=False) == reference.spm_ids(escaped, ids, by_id, set(pieces)), text


@st.composite
def merge_lists(draw: st.DrawFn) -> list[tuple[str, str]]:
    """Merges of what there already is, some doubled, in any order that a file may have."""
    known = list("abcĠ12")
    merges = []
    for _ in range(draw(st.integers(0, 25))):
        pair = (draw(st.sampled_from(known)), draw(st.sampled_from(known)))
        merges.append(pair)
        if "".join(pair) not in known:
            known.append("".join(pair))
    return draw(st.permutations(merges))


LETTERS, DIGITS = "A-Za-zéÀ-ÖØ-öø-ÿ中", "0-9"


def narrowed(regex: str) -> str:
    """A regex of llama.cpp's for Python, over the letters and digits of the tests; classes stand inside [ ] or not."""
    for name, characters in ((r"\p{L}", LETTERS), (r"\p{N}", DIGITS), (r"\p{P}", r"!'.,\-")):
        while found := re.search(rf"\[[^\]]*{re.escape(name)}", regex):
            regex = regex[: found.end() - len(name)] + characters + regex[found.end() :]
        regex = regex.replace(name, f"[{characters}]")
    return regex


# Copied from llama-vocab.cpp, not from our table.
GPT_2 = (r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",)
LLAMA_3 = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
STARCODER = (r"\p{N}", *GPT_2)
DEEPSEEK_CODER = ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}")
REGEXES = {"gpt-2": GPT_2, "llama-bpe": LLAMA_3, "starcoder": STARCODER, "deepseek-coder": DEEPSEEK_CODER}


@pytest.mark.parametrize("pre", list(REGEXES))
@settings(max_examples=60, deadline=None)
@given(merge_lists(), st.lists(st.text(alphabet="abcZé中12 \n\t'!.", max_size=30), max_size=8))
def test_bpe_on_random_vocabularies(pre: str, merges: list[tuple[str, str]], texts: list[str]) -> None:
    gguf = opened(bpe_metadata(merges, pre=pre, add_bos_token=False))
    tokenizer = load_tokenizer(gguf)
    ids = {token: i for i, token in enumerate(gguf.strings("tokenizer.ggml.tokens"))}
    for text in texts:
        assert tokenizer.encode(text) == _bpe_ids(text, ids, merges, pre), text


def _bpe_ids(text: str, ids: dict[str, int], merges: Sequence[tuple[str, str]], pre: str) -> list[int]:
    out = []
    for word in reference.words(text, [narrowed(regex) for regex in REGEXES[pre]]):
        written = "".join(byte_characters()[byte] for byte in word.encode())
        out += reference.bpe_word_ids(written, ids, merges, ignore_merges=pre == "llama-bpe")
    return out


@need_shared
@pytest.mark.parametrize("name", ["llama-spm", "phi-3"])
@settings(max_examples=60, deadline=None)
@given(st.text(max_size=60) | st.text(alphabet="abcdehinorst .,\n=-", max_size=60))
def test_spm_on_real_vocabularies(name: str, text: str) -> None:
    real = _real(name)
    escaped = (" " + text).replace(" ", "▁") if text else ""
    expected = reference.spm_ids(escaped, real.ids, real.scores, real.formable)
    assert real.tokenizer.encode(text, add_special=False, parse_special=False) == expected


class RealVocabulary:
    """A vocabulary file, and what the twin needs of it."""

    def __init__(self, name: str) -> None:
        with open_gguf(VOCAB / f"ggml-vocab-{name}.gguf") as gguf:
            self.tokenizer = load_tokenizer(gguf)
            tokens = gguf.strings("tokenizer.ggml.tokens").to_list()
            types = gguf.numbers("tokenizer.ggml.token_type").tolist()
            self.scores: list[float] = gguf.numbers("tokenizer.ggml.scores").tolist()
        self.ids = {token: i for i, token in enumerate(tokens)}
        self.formable = {token for token, type in zip(tokens, types, strict=True) if type == 1}


_real_vocabularies: dict[str, RealVocabulary] = {}


def _real(name: str) -> RealVocabulary:
    if name not in _real_vocabularies:
        _real_vocabularies[name] = RealVocabulary(name)
    return _real_vocabularies[name]
