"""The vocabulary of a file: its tokens, their kinds and scores, and the keys that say how text is to be treated.

Owns reading `tokenizer.ggml.*` and refusing what is malformed. Which tokens end a text is special_tokens.py's; words
and merges are library.py's. Follows llama.cpp (llama-vocab.cpp, load) but is stricter where it would go on with a
guess: lengths must agree exactly, and an id outside the vocabulary is an error. (2**32 - 1, which converters write for
"none", counts as absent.)
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntFlag

import numpy as np
import numpy.typing as npt

from llmkit.errors import MetadataError, TokenizerError
from llmkit.files.gguf_reader import GgufFile
from llmkit.tokenizer.pretokenizers import PreTokenizer, pre_tokenizer

PREFIX = "tokenizer.ggml."
SPM_SPACE = "\u2581"
_NO_ID = 0xFFFFFFFF
_DAMAGED = "The file is damaged or was converted wrongly: fetch another conversion of the model."
_RUNS = (
    "llmkit runs byte-level BPE (gpt2), SPM (llama) and WordPiece (bert); "
    "such a model can still be run on token ids (--ids)."
)


class Attr(IntFlag):
    """What a token is; the bits of llama.cpp's llama_token_attr. A token that is not normal may have several."""

    NONE = 0
    UNKNOWN = 1
    UNUSED = 2
    NORMAL = 4
    CONTROL = 8
    USER_DEFINED = 16
    BYTE = 32


_ATTR_OF_TYPE = np.array(
    [Attr.NONE, Attr.NORMAL, Attr.UNKNOWN, Attr.CONTROL, Attr.USER_DEFINED, Attr.UNUSED, Attr.BYTE], dtype=np.uint8
)


@dataclass
class Vocab:
    """`ids` is the inverse of `tokens`; `attrs` (uint8, Attr bits) is completed by special_tokens.py. Only BPE has
    `pre`, only SPM `scores` (float32), only WordPiece `lowercase` and `strip_accents`. `special_ids` holds, by
    llama.cpp's short names, the ids that the file or the kind of tokenizer gives. `place` names the file in messages.
    """

    place: str
    model: str
    pre: PreTokenizer | None
    tokens: list[str]
    ids: dict[str, int]
    attrs: npt.NDArray[np.uint8]
    scores: npt.NDArray[np.float32] | None
    special_ids: dict[str, int]
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool
    general_name: str
    arch: str
    add_sep: bool = False
    lowercase: bool = False
    strip_accents: bool = False
    suppressed_ids: frozenset[int] = frozenset()

    @property
    def is_spm(self) -> bool:
        """Whether the tokens are pieces with U+2581 for space and byte tokens, and not GPT-2's characters for bytes."""
        return self.model == "llama"

    @property
    def is_word_piece(self) -> bool:
        """Whether tokens that begin a word are marked by U+2581, and all others continue one (BERT)."""
        return self.model == "bert"


def read_vocab(gguf: GgufFile) -> Vocab:
    """Reads and checks the vocabulary; TokenizerError says what is wrong with it, or that its kind does not run."""
    with named_errors(gguf):
        model = gguf.str(PREFIX + "model", None)
        _check_model(model)
        assert model is not None
        pre = pre_tokenizer(gguf.str(PREFIX + "pre", None)) if model == "gpt2" else None
        tokens = _tokens(gguf)
        vocab = Vocab(
            place=gguf.place, model=model, pre=pre, tokens=tokens, ids=_ids(tokens), attrs=_attrs(gguf, len(tokens)),
            scores=_scores(gguf, model, len(tokens)), special_ids=_special_ids(gguf, model, len(tokens)),
            add_bos=gguf.bool(PREFIX + "add_bos_token", pre.add_bos if pre else True),
            add_eos=gguf.bool(PREFIX + "add_eos_token", False),
            add_sep=gguf.bool(PREFIX + "add_sep_token", pre.add_sep if pre else model == "bert"),
            add_space_prefix=gguf.bool(PREFIX + "add_space_prefix", True) if model == "llama" else model == "bert",
            general_name=gguf.str("general.name", ""), arch=gguf.str("general.architecture", ""),
        )  # fmt: skip
        if vocab.is_word_piece:
            vocab.lowercase = gguf.bool(PREFIX + "normalizer.lowercase", True)
            vocab.strip_accents = gguf.bool(PREFIX + "normalizer.strip_accents", vocab.lowercase)
        vocab.suppressed_ids = _suppressed(gguf, len(tokens))
        _check_byte_tokens(vocab)
        _check_added(vocab)
        return vocab


@contextmanager
def named_errors(gguf: GgufFile) -> Iterator[None]:
    """Turns a metadata error inside the block into a TokenizerError, and puts the file's name before what does not have
    it.
    """
    try:
        yield
    except MetadataError as error:
        raise TokenizerError(error.message, error.hint) from error
    except TokenizerError as error:
        if error.message.startswith(gguf.place):
            raise
        raise TokenizerError(f"{gguf.place}: {error.message}", error.hint) from error


def _check_model(model: str | None) -> None:
    if model in ("gpt2", "llama", "bert"):
        return
    if model is None:
        raise TokenizerError("the file holds no tokenizer (tokenizer.ggml.model is missing)", _RUNS)
    if model in ("none", "no_vocab", "test"):
        raise TokenizerError(f"the file holds no tokenizer for text (tokenizer.ggml.model is {model})", _RUNS)
    raise TokenizerError(f"the tokenizer model {model[:80]!r} does not run in llmkit", _RUNS)


def _tokens(gguf: GgufFile) -> list[str]:
    tokens = gguf.strings(PREFIX + "tokens").to_list()
    if not tokens:
        raise TokenizerError("the vocabulary is empty (tokenizer.ggml.tokens)", _DAMAGED)
    # llama.cpp's name for what has none
    return tokens if all(tokens) else [token or f"[EMPTY_{i}]" for i, token in enumerate(tokens)]


def _ids(tokens: list[str]) -> dict[str, int]:
    ids = dict(zip(tokens, range(len(tokens)), strict=True))
    if len(ids) == len(tokens):
        return ids
    first, second = next((i, ids[token]) for i, token in enumerate(tokens) if ids[token] != i)
    raise TokenizerError(f"tokens {first} and {second} are both {tokens[first][:80]!r}", _DAMAGED)


def _attrs(gguf: GgufFile, n_vocab: int) -> npt.NDArray[np.uint8]:
    key = PREFIX + "token_type"
    types = gguf.numbers(key, None)
    if types is None:
        return np.full(n_vocab, Attr.NORMAL, dtype=np.uint8)
    _check_array(key, types, n_vocab, (np.dtype(np.int32),), "INT32")
    # A type that does not exist counts as "undefined", as in llama.cpp: such a token is never shown.
    return _ATTR_OF_TYPE[np.where((types >= 0) & (types < len(_ATTR_OF_TYPE)), types, 0)]


def _scores(gguf: GgufFile, model: str, n_vocab: int) -> npt.NDArray[np.float32] | None:
    key = PREFIX + "scores"
    scores = gguf.numbers(key, None)
    if scores is None:
        if model == "llama":
            raise TokenizerError(f"an SPM vocabulary needs scores, and {key} is missing", _DAMAGED)
        return None
    _check_array(key, scores, n_vocab, (np.dtype(np.float32), np.dtype(np.int32)), "FLOAT32")
    floats = scores.astype(np.float32)
    if np.isnan(floats).any():
        raise TokenizerError(f"{key}: entry {int(np.isnan(floats).argmax())} is not a number", _DAMAGED)
    return floats if model == "llama" else None


def _check_array(
    key: str, values: npt.NDArray[np.generic], n_vocab: int, dtypes: tuple[np.dtype[np.generic], ...], expected: str
) -> None:
    if values.dtype not in dtypes:
        raise TokenizerError(f"{key} holds {values.dtype.name} values; {expected} is expected", _DAMAGED)
    if len(values) != n_vocab:
        raise TokenizerError(f"{key} has {len(values)} entries for {n_vocab} tokens", _DAMAGED)


def _suppressed(gguf: GgufFile, n_vocab: int) -> frozenset[int]:
    """Tokens that llama.cpp never samples, whatever the options (common/sampling.cpp, common_sampler_init)."""
    key = PREFIX + "suppress_tokens"
    ids = gguf.numbers(key, None)
    if ids is None:
        return frozenset()
    if ids.dtype.kind not in "iu":
        raise TokenizerError(f"{key} holds {ids.dtype.name} values; INT32 is expected", _DAMAGED)
    if len(ids) and not (0 <= ids.min() and ids.max() < n_vocab):
        raise TokenizerError(f"{key} names tokens outside the vocabulary of {n_vocab}", _DAMAGED)
    return frozenset(ids.tolist())


_ID_KEYS = {
    "bos": "bos_token_id", "eos": "eos_token_id", "eot": "eot_token_id", "eom": "eom_token_id",
    "unk": "unknown_token_id", "sep": "seperator_token_id", "mask": "mask_token_id",
    "fim_pad": "fim_pad_token_id", "fim_rep": "fim_rep_token_id", "fim_sep": "fim_sep_token_id",
    "fim_pre": "fim_pre_token_id", "fim_suf": "fim_suf_token_id", "fim_mid": "fim_mid_token_id",
}  # fmt: skip
_OLD_ID_KEYS = {"fim_pre": "prefix_token_id", "fim_suf": "suffix_token_id", "fim_mid": "middle_token_id"}
_USUAL_IDS = {"llama": {"unk": 0, "bos": 1, "eos": 2}, "bert": {"unk": 100, "bos": 101, "sep": 102, "mask": 103}}


def _special_ids(gguf: GgufFile, model: str, n_vocab: int) -> dict[str, int]:
    """The ids that the file names, and for SPM and WordPiece the usual ones. For BPE llama.cpp takes Falcon's 11 where
    it names none: a guess that would make a comma end the text of another model, and is left out here.
    """
    ids = {name: id for name, id in _USUAL_IDS.get(model, {}).items() if id < n_vocab}
    cls = [("bos", "cls_token_id")] if model == "bert" else []  # what begins a text there
    for name, key in [*cls, *_ID_KEYS.items(), *_OLD_ID_KEYS.items()]:
        id = gguf.u32(PREFIX + key, _NO_ID)
        if id == _NO_ID:
            continue
        if id >= n_vocab:
            raise TokenizerError(f"{PREFIX}{key} is {id}, but the vocabulary has {n_vocab} tokens", _DAMAGED)
        ids[name] = id
    return ids


def _check_byte_tokens(vocab: Vocab) -> None:
    for id in np.flatnonzero(vocab.attrs & Attr.BYTE).tolist():
        token = vocab.tokens[id]
        if not (len(token) == 6 and token.startswith("<0x") and token.endswith(">") and _is_hex(token[3:5])):
            message = f"token {id} is a byte token, but {token[:80]!r} names no byte as <0x41> does"
            raise TokenizerError(message, _DAMAGED)


def _is_hex(text: str) -> bool:
    return all(c in "0123456789abcdefABCDEF" for c in text)


def _check_added(vocab: Vocab) -> None:
    # A BPE vocabulary whose name asks for a separator but that names none gets none.
    add_sep = vocab.add_sep and vocab.is_word_piece
    for name, wanted in (("bos", vocab.add_bos), ("eos", vocab.add_eos), ("sep", add_sep)):
        if wanted and name not in vocab.special_ids:
            key = f"{PREFIX}{_ID_KEYS[name]}"
            raise TokenizerError(f"every text is to get a {name.upper()} token, but {key} does not say which", _DAMAGED)
