"""Token ids to text, one at a time: whole characters only.

Owns the bytes of a character that is not complete yet. Invalid bytes become U+FFFD, one for each maximal part of a
character (Unicode's recommendation, and what `bytes.decode(errors="replace")` gives), whether the bytes come one by one
or together.
"""

import codecs
from typing import Protocol


class Pieces(Protocol):
    """What is needed of a tokenizer."""

    @property
    def add_space_prefix(self) -> bool:
        """Whether a text was given a space in front."""

    def piece_bytes(self, id: int, special: bool = False) -> bytes:
        """The bytes of a token."""


class Detokenizer:
    """Turns a stream of token ids into text. What `push` and `finish` gave, joined, is the text of all ids.

    `special` shows control tokens. `at_start`: the ids begin a text, so the space that an SPM vocabulary puts in front
    of one is taken away; text generated after a prompt keeps its space.
    """

    def __init__(self, pieces: Pieces, special: bool = False, at_start: bool = False) -> None:
        self._pieces = pieces
        self._special = special
        self._drop_space = at_start and pieces.add_space_prefix
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, id: int) -> str:
        """The characters that this token completes; may be empty."""
        piece = self._pieces.piece_bytes(id)
        if self._drop_space and piece:
            self._drop_space = False
            piece = piece.removeprefix(b" ")
        elif self._special and not piece:
            piece = self._pieces.piece_bytes(id, special=True)
        return self._decoder.decode(piece)

    def finish(self) -> str:
        """What was held back, as U+FFFD where a character was left incomplete; the stream can go on with a new text
        then.
        """
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
