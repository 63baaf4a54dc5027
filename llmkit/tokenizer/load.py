"""From an open GGUF file to a ready tokenizer.

Owns the order of the steps and where merges are kept; what each step means is in its own module.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from llmkit.files.cache_dir import cache_root
from llmkit.files.gguf_reader import GgufFile
from llmkit.tokenizer import library
from llmkit.tokenizer.merges_cache import merges_key, read_merges, write_merges
from llmkit.tokenizer.short_texts import BpeWords, Merges, ShortFirst, Words
from llmkit.tokenizer.special_tokens import special_tokens
from llmkit.tokenizer.tokenizer import Tokenizer
from llmkit.tokenizer.vocab import PREFIX, SPM_SPACE, Attr, Vocab, named_errors, read_vocab


def load_tokenizer(gguf: GgufFile, cache_dir: Path | None = None) -> Tokenizer:
    """The file's tokenizer. `cache_dir` is the root of llmkit's cache (default: the user's); merges of SPM vocabularies
    are kept in its folder tokenizers/. TokenizerError when the file has none, one of a kind that does not run, or one
    that is malformed.
    """
    vocab = read_vocab(gguf)
    with named_errors(gguf):
        words = _words(gguf, vocab, cache_dir)
    return Tokenizer(vocab, special_tokens(vocab), words)


def _words(gguf: GgufFile, vocab: Vocab, cache_dir: Path | None) -> Words:
    """By the kept merges, else (or should they turn out not to fit) by those of the file, or rebuilt ones."""
    if vocab.is_word_piece:
        return library.word_piece_model(vocab)
    folder = (cache_dir or cache_root()) / "tokenizers"
    names = ("tokens", "scores", "token_type") if vocab.is_spm else ("tokens", "merges")
    key = merges_key(*(gguf.entries[PREFIX + name].raw for name in names if PREFIX + name in gguf.entries))
    kept = read_merges(folder, key, len(vocab.tokens))
    stored = None if vocab.is_spm else gguf.strings(PREFIX + "merges")  # can still be read when the file is closed

    def build() -> library.WordModel:
        if kept is not None and vocab.is_spm and Merges(vocab, kept).fit():
            return library.spm_model(vocab, kept)
        words, merges = _spm(vocab) if stored is None else _bpe(vocab, stored)
        write_merges(folder, key, merges)
        return words

    if kept is None:
        return build()
    return ShortFirst(BpeWords(vocab, Merges(vocab, kept), library.splitter(vocab)), build)


def _bpe(vocab: Vocab, stored: Sequence[str]) -> tuple[library.WordModel, npt.NDArray[np.int32]]:
    words, pairs = library.bpe_model(vocab, list(stored))
    return words, library.merge_ids(vocab, pairs)


def _spm(vocab: Vocab) -> tuple[library.WordModel, npt.NDArray[np.int32]]:
    merges = _rebuild(vocab)
    words = library.spm_model(vocab, merges)
    token = vocab.tokens.__getitem__
    return words, library.merge_ids(vocab, list(zip(*(map(token, side) for side in merges.T.tolist()), strict=True)))


def _rebuild(vocab: Vocab) -> npt.NDArray[np.int32]:
    """Merges between the tokens that plain text can turn into.

    As in SentencePiece, which never makes a control, unknown or byte token out of the characters of its name.
    (llama.cpp does, where their parts are tokens: then a text from outside could end a turn.) A token that a user
    defined has been found before, unless it holds an escaped space.
    """
    from llmkit.tokenizer.spm_merges import rebuild_merges

    assert vocab.scores is not None
    formable = (vocab.attrs & (Attr.NORMAL | Attr.UNUSED)) != 0
    for id in np.flatnonzero(vocab.attrs & Attr.USER_DEFINED).tolist():
        formable[id] = SPM_SPACE in vocab.tokens[id]
    return rebuild_merges(vocab.tokens, vocab.scores, formable)
