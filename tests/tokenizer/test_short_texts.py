"""Short texts are read without the library, and nobody can tell: the same ids, up to the same limits."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmkit.errors import TokenizerError
from llmkit.files.gguf_reader import open_gguf
from llmkit.tokenizer import Tokenizer, library, load_tokenizer, short_texts
from llmkit.tokenizer.short_texts import ShortFirst
from tests.tokenizer.test_merges_cache import _file_of
from tests.tokenizer.test_reference_twin import CHARACTERS, merge_lists, spm_vocabularies
from tests.tokenizer.vocabs import KEY, bpe_metadata, loaded, opened, spm_metadata

ORDINARY = [
    "Once upon",
    " a time",
    "naïve",
    "\n\n",
    "    ",
    "def f(x):",
    "12345",
    "中文",
    "🦙",
    "ﷺ",
    "\0",
    "'ll",
    "é",
    "\x85",
    "▁",
]


def both(tokenizer: Tokenizer, text: str) -> tuple[list[list[int]], list[list[int]]]:
    """The ids of a text from the twin and from the library."""
    words = tokenizer._words
    assert isinstance(words, ShortFirst)
    texts = [" " + text, text]
    return [words._short.encode(text) for text in texts], words.library().encode(texts)


def twice(metadata: dict[str, object], cache: Path) -> Tokenizer:
    """A tokenizer that was opened before."""
    loaded(metadata, cache)
    return loaded(metadata, cache)


@settings(max_examples=30, deadline=None)
@given(spm_vocabularies(), st.lists(st.text(alphabet="abc é\n", max_size=40), min_size=4, max_size=8))
def test_spm(
    tmp_path_factory: pytest.TempPathFactory, vocabulary: tuple[list[str], list[float]], texts: list[str]
) -> None:
    tokenizer = twice(spm_metadata(*vocabulary), tmp_path_factory.mktemp("cache"))
    for text in texts:
        short, whole = both(tokenizer, text)
        assert short == whole, text


@settings(max_examples=50, deadline=None)
@given(merge_lists(), st.booleans(), st.lists(st.text(alphabet="abc12 é", max_size=40), min_size=4, max_size=8))
def test_bpe(
    tmp_path_factory: pytest.TempPathFactory, merges: list[tuple[str, str]], whole_words: bool, texts: list[str]
) -> None:
    """Merges in any order: those that a pair waits for, and those that make the same token of other halves."""
    metadata = bpe_metadata(merges, ["cabx"], pre="llama-bpe" if whole_words else "gpt-2", add_bos_token=False)
    tokenizer = twice(metadata, tmp_path_factory.mktemp("cache"))
    for text in [*texts, "cabx cabx"]:
        short, whole = both(tokenizer, text)
        assert short == whole, text


@pytest.mark.parametrize("name", ["smollm2-135m", "gemma-3-270m", "qwen2.5-coder-0.5b"])
def test_real_vocabularies(name: str, real_model: Callable[[str], Path]) -> None:
    rng = random.Random(1)
    with open_gguf(real_model(name)) as gguf:
        load_tokenizer(gguf)
        tokenizer = load_tokenizer(gguf)
    pieces = ORDINARY + [tokenizer.decode([rng.randrange(300, tokenizer.n_vocab)]) for _ in range(300)]
    for _ in range(60):
        short, whole = both(tokenizer, "".join(rng.choices(pieces, k=rng.randrange(1, 30))))
        assert short == whole


def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows with each library that is built."""
    calls: list[str] = []
    make = library._bpe

    def counted(*args: Any, **options: Any) -> object:
        calls.append("built")
        return make(*args, **options)

    monkeypatch.setattr(library, "_bpe", counted)
    return calls


@pytest.mark.parametrize("metadata", [spm_metadata(["a", "b", "ab"]), bpe_metadata([("a", "b")])], ids=["spm", "bpe"])
def test_the_library_is_built_when_texts_become_long(
    metadata: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded(metadata, tmp_path)
    calls = built(monkeypatch)
    tokenizer = loaded(metadata, tmp_path)
    half = "ab" * (short_texts.N_SHORT // 4)
    ids = tokenizer.encode(half)
    assert not calls
    assert tokenizer.encode(half) == tokenizer.encode(half) == ids
    assert len(calls) == 1


def test_prepare_builds_it_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded(bpe_metadata([("a", "b")]), tmp_path)
    calls = built(monkeypatch)
    loaded(bpe_metadata([("a", "b")]), tmp_path).prepare()
    assert calls == ["built"]


def test_a_character_that_is_no_token_is_the_library_s(tmp_path: Path) -> None:
    """Byte tokens are missing, so it is the unknown token, and several in a row are one."""
    metadata = spm_metadata([*CHARACTERS, "ab"])
    tokens = [f"[{i}]" if 3 <= i < 259 else token for i, token in enumerate(metadata[KEY + "tokens"])]  # type: ignore[arg-type, var-annotated]
    metadata[KEY + "tokens"] = tokens
    metadata[KEY + "token_type"] = np.array([2, 3, 3] + [1] * (len(tokens) - 3), dtype=np.int32)
    metadata[KEY + "unknown_token_id"] = 0
    first = loaded(metadata, tmp_path).encode("ab中文ab")
    assert loaded(metadata, tmp_path).encode("ab中文ab") == first
    assert 0 in first


def test_a_merge_that_its_tokens_do_not_make_is_not_believed(tmp_path: Path) -> None:
    """The kept file is sound and of this vocabulary, but says that a and b make c: the file's own merges count."""
    metadata = bpe_metadata([("a", "b")])
    ids = loaded(metadata, tmp_path).encode("ab")
    (path,) = (tmp_path / "tokenizers").iterdir()
    a, b, c = (opened(metadata).strings(KEY + "tokens").to_list().index(letter) for letter in "abc")
    good = path.read_bytes()
    path.write_bytes(_file_of(path.stem, np.array([[a, b, c]], dtype=np.int32)))
    assert loaded(metadata, tmp_path).encode("ab") == ids
    assert path.read_bytes() == good


def test_a_regex_that_fails_later_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from llmkit.tokenizer import pretokenizers, vocab

    metadata = bpe_metadata([("a", "b")])
    loaded(metadata, tmp_path)
    real = pretokenizers.pre_tokenizer
    monkeypatch.setattr(vocab, "pre_tokenizer", lambda name: replace(real(name), regexes=("[",)))
    with pytest.raises(TokenizerError, match="pre-tokenizer gpt-2 cannot be built"):
        loaded(metadata, tmp_path)
