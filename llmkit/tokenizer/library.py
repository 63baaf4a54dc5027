"""The `tokenizers` library, behind one door: built from a vocabulary, asked for ids, and its failures given names.

Owns what is handed to the library and how. Text comes here without special tokens; see tokenizer.py. The library is
written in Rust: a panic there is no Exception in Python, and a text it cannot take must not end a server.
"""

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from llmkit.errors import TokenizerError
from llmkit.tokenizer.vocab import SPM_SPACE, Attr, Vocab

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library
    from tokenizers.pre_tokenizers import PreTokenizer

_FAILED = "the tokenizer failed on this text"
_BAD_MERGES = "The file is damaged or was converted wrongly: fetch another conversion of the model."


class WordModel:
    """Encodes plain text with a `tokenizers` model."""

    def __init__(self, library: "Library", place: str, escape_spaces: bool) -> None:
        self._library = library
        self._place = place
        self._escape_spaces = escape_spaces

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text; without the GIL, so that other threads run. `texts` hold no lone surrogates."""
        if self._escape_spaces:
            texts = [text.replace(" ", SPM_SPACE) for text in texts]
        with named_failures(self._place, _FAILED):
            # The fast one leaves out the offsets, which are half the time and most of the memory.
            return [encoding.ids for encoding in self._library.encode_batch_fast(list(texts), add_special_tokens=False)]


def spm_model(vocab: Vocab, merges: npt.NDArray[np.int32]) -> WordModel:
    """An SPM vocabulary with its merges (their ids, best first; the first two columns count). What no token covers
    becomes byte tokens, or else the unknown token.
    """
    unk = vocab.special_ids.get("unk")
    with _no_garbage_collection():
        left, right = merges[:, :2].T.tolist()
        token = vocab.tokens.__getitem__
        pairs = list(zip(map(token, left), map(token, right), strict=True))
        unk_token = None if unk is None else vocab.tokens[unk]
        return WordModel(_bpe(vocab, pairs, byte_fallback=True, unk_token=unk_token, fuse_unk=True), vocab.place, True)


def bpe_model(vocab: Vocab, merges: list[str]) -> tuple[WordModel, list[tuple[str, str]]]:
    """A BPE vocabulary with its merges (`left right`, best first) and its pre-tokenizer; and the merges as pairs."""
    assert vocab.pre is not None
    with _no_garbage_collection():
        pairs = _pairs(dict.fromkeys(merges))
        try:
            library = _bpe(vocab, pairs, byte_fallback=not vocab.pre.byte_level, ignore_merges=vocab.pre.ignore_merges)
        except TokenizerError:
            _name_unknown(vocab, pairs)
            raise
    library.pre_tokenizer = _pre_tokenizer(vocab)
    return WordModel(library, vocab.place, not vocab.pre.byte_level), pairs


def _pre_tokenizer(vocab: Vocab) -> "PreTokenizer":
    from tokenizers import Regex, pre_tokenizers

    assert vocab.pre is not None
    with named_failures(vocab.place, f"the pre-tokenizer {vocab.pre.name} cannot be built"):
        steps: list[PreTokenizer] = [
            pre_tokenizers.Split(Regex(regex), behavior="isolated") for regex in vocab.pre.regexes
        ]
        if vocab.pre.byte_level:
            steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False))
        return pre_tokenizers.Sequence(steps)


def splitter(vocab: Vocab) -> Callable[[str], list[str]]:
    """What cuts a text into words as the library does it: by the pre-tokenizer, or not at all (SPM)."""
    if vocab.pre is None:
        return lambda text: [text]
    steps = _pre_tokenizer(vocab)

    def split(text: str) -> list[str]:
        with named_failures(vocab.place, _FAILED):
            return [word for word, _ in steps.pre_tokenize_str(text)]

    return split


def merge_ids(vocab: Vocab, pairs: Sequence[tuple[str, str]]) -> npt.NDArray[np.int32]:
    """The ids of left, right and joined of merges that the library took, int32 [n, 3]."""
    id = vocab.ids
    return np.array([(id[left], id[right], id[left + right]) for left, right in pairs], dtype=np.int32).reshape(-1, 3)


def word_piece_model(vocab: Vocab) -> WordModel:
    """A WordPiece vocabulary (BERT): the longest token that begins the word, then the longest that continues it.

    Text is prepared as BERT's own tokenizer does it. llama.cpp has the same rules, but no limit to a word's length.
    """
    from tokenizers import Tokenizer as Library
    from tokenizers import models, normalizers, pre_tokenizers

    unk = vocab.special_ids.get("unk")
    if unk is None:
        raise TokenizerError("a WordPiece vocabulary needs tokenizer.ggml.unknown_token_id", _BAD_MERGES)
    words = {_word_piece(token): id for id, token in enumerate(vocab.tokens) if not vocab.attrs[id] & Attr.CONTROL}
    words[vocab.tokens[unk]] = unk
    with named_failures(vocab.place, "the tokenizer cannot be built"):
        model = models.WordPiece(words, unk_token=vocab.tokens[unk], max_input_chars_per_word=100)
        library = Library(model)
        library.normalizer = normalizers.BertNormalizer(
            clean_text=True, handle_chinese_chars=True, strip_accents=vocab.strip_accents, lowercase=vocab.lowercase
        )
        library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return WordModel(library, vocab.place, False)


def _word_piece(token: str) -> str:
    """As the library writes it: GGUF marks what begins a word, BERT what continues one."""
    return token[1:] if token.startswith(SPM_SPACE) else f"##{token}"


def _pairs(merges: dict[str, None]) -> list[tuple[str, str]]:
    """`left right` cut at its space; a left half may begin with one, as in llama.cpp."""
    pairs = []
    for merge in merges:
        left, space, right = merge.partition(" ")
        if not left:
            left, space, right = merge[1:].partition(" ")
            left = " " + left
        if not space or not right:
            raise TokenizerError(f"tokenizer.ggml.merges: {merge[:80]!r} is no pair with a space between", _BAD_MERGES)
        pairs.append((left, right))
    return pairs


def _name_unknown(vocab: Vocab, pairs: list[tuple[str, str]]) -> None:
    """Both halves and the whole must be tokens: the library takes nothing else. (llama.cpp goes on, and spells such
    words in bytes.)
    """
    for pair in pairs:
        for part in (*pair, "".join(pair)):
            if part not in vocab.ids:
                merge = f"{pair[0][:80]!r} and {pair[1][:80]!r}"
                message = f"tokenizer.ggml.merges: {merge} need {part[:80]!r}, which is no token"
                raise TokenizerError(message, _BAD_MERGES)


def _bpe(vocab: Vocab, pairs: list[tuple[str, str]], **options: object) -> "Library":
    # Read when the library first works on several texts. Ours are parts of one prompt, not worth a pool of threads, and
    # a pool makes the library warn on stderr when the process forks later.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from tokenizers import Tokenizer as Library
    from tokenizers import models

    with named_failures(vocab.place, "the tokenizer cannot be built"):
        return Library(models.BPE(vocab.ids, pairs, **options))


@contextmanager
def named_failures(place: str, what: str) -> Iterator[None]:
    """Turns whatever the library raises, panics included, into a TokenizerError."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        hint = "This is a fault of the file or of the tokenizers library."
        raise TokenizerError(f"{place}: {what}: {error}", hint) from error


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Half a million small tuples at once are no garbage, but each ten thousand of them make Python look through all
    objects: 0.3 s.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
