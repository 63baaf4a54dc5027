"""A file's tokenizer: text to ids, ids to text.

Owns what happens around plain words: special tokens, the tokens added in front and behind, SPM's leading space. Follows
llama.cpp's tokenize and detokenize, except that a text that itself begins with the BOS token does not get a second one,
nor a second EOS at its end. `tokenizer.ggml.remove_extra_whitespaces` changes nothing here, as in llama.cpp: only t5's
kind of tokenizer reads it. Nor are spaces cleaned up before punctuation: the text of ids is the same whether it is
streamed or not.
"""

import re
from collections.abc import Iterable

from llmkit.tokenizer.detokenizer import Detokenizer
from llmkit.tokenizer.pieces import piece_bytes
from llmkit.tokenizer.short_texts import ShortFirst, Words
from llmkit.tokenizer.special_split import SpecialSplitter
from llmkit.tokenizer.special_tokens import SpecialTokens
from llmkit.tokenizer.vocab import Vocab

_SURROGATES = re.compile("[\ud800-\udfff]")


class Tokenizer:
    """Made by `load_tokenizer`. Holds no state between calls; may be used from several threads at once."""

    def __init__(self, vocab: Vocab, special: SpecialTokens, words: Words) -> None:
        self._vocab = vocab
        self._words = words
        self._splitter = SpecialSplitter(vocab, special)
        self.n_vocab: int = len(vocab.tokens)
        self.bos_id: int | None = special.bos_id
        self.eos_id: int | None = special.eos_id
        self.eog_ids: frozenset[int] = special.eog_ids
        self.fim_ids: dict[str, int] = special.fim
        self.suppressed_ids: frozenset[int] = vocab.suppressed_ids
        self.add_bos: bool = vocab.add_bos
        self.add_eos: bool = vocab.add_eos
        self._sep_id = special.sep_id if vocab.add_sep else None

    @property
    def add_space_prefix(self) -> bool:
        """Whether a text, and what follows a special token, gets a space in front (SPM; WordPiece, which sees none)."""
        return self._vocab.add_space_prefix

    def encode(self, text: str, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """The token ids of `text`.

        `add_special`: with the BOS, EOS and separator tokens that the file asks for. `parse_special`: control tokens
        written in the text are those tokens; otherwise they are words like others, so a text from outside cannot end a
        turn. Any str is taken: NUL is a character like others, a lone surrogate counts as U+FFFD. Bytes that are no
        UTF-8 are for the caller to decode.
        """
        parts = self._splitter.split(self._sound(text), parse_special)
        encoded = iter(self._words.encode(self._texts(parts)))
        ids: list[int] = []
        for part in parts:
            ids.extend([part] if isinstance(part, int) else next(encoded))
        if add_special and self.add_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        if add_special and self.add_eos and self.eos_id is not None and ids[-1:] != [self.eos_id]:
            ids.append(self.eos_id)
        if add_special and self._sep_id is not None:
            ids.append(self._sep_id)
        return ids

    def prepare(self) -> None:
        """Builds now what only long texts need, so that none of them waits for it."""
        if isinstance(self._words, ShortFirst):
            self._words.library()

    def piece_bytes(self, id: int, special: bool = False) -> bytes:
        """The bytes of one token; those of a control token only with `special`. An id outside the vocabulary (a model
        may have more rows than its tokenizer has tokens) is nothing.
        """
        return piece_bytes(self._vocab, id, special) if 0 <= id < self.n_vocab else b""

    def decode(self, ids: Iterable[int], special: bool = False, at_start: bool = True) -> str:
        """The text of `ids`, invalid bytes as U+FFFD. `at_start`: they begin a text, so SPM's leading space is taken
        away; False gives what `stream` gives.
        """
        detokenizer = Detokenizer(self, special, at_start)
        return "".join([*map(detokenizer.push, ids), detokenizer.finish()])

    def stream(self, special: bool = False, at_start: bool = False) -> Detokenizer:
        """A detokenizer for ids that come one by one, by default those generated after a prompt."""
        return Detokenizer(self, special, at_start)

    def _texts(self, parts: list[str | int]) -> list[str]:
        """The texts among the parts, with a space in front where SPM wants one: at the beginning and after a special
        token.
        """
        prefix = " " if self.add_space_prefix else ""
        return [prefix + part for part in parts if isinstance(part, str)]

    def _sound(self, text: str) -> str:
        try:
            text.encode()
        except UnicodeEncodeError:
            return _SURROGATES.sub("\ufffd", text)
        return text
