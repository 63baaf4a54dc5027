"""From the bytes of a text to its token ids, as llama.cpp's perplexity tool does it.

Owns what of the text counts: one newline at its very end does not, and special tokens written in it are plain text.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from llmkit.evaluate.errors import EmptyTextError, TextEncodingError


class Encoder(Protocol):
    """What is needed of a tokenizer."""

    def encode(self, text: str, add_special: bool = True, parse_special: bool = True) -> list[int]: ...


def decode_text(raw: bytes, place: str) -> str:
    """The text of a file; `place` names it in errors. EmptyTextError, TextEncodingError."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"{place} is not UTF-8: byte {error.start} is 0x{raw[error.start]:02x}"
        raise TextEncodingError(message, "convert it first, for example with `iconv -t UTF-8`") from error
    text = text.removesuffix("\n")
    if not text:
        raise EmptyTextError(f"{place} is empty", "give a text of at least two windows (-c)")
    return text


def encode_text(tokenizer: Encoder, text: str, parse_special: bool = False) -> NDArray[np.int32]:
    """Token ids, int32 [n], with what the model adds at the beginning."""
    return np.array(tokenizer.encode(text, add_special=True, parse_special=parse_special), np.int32)
