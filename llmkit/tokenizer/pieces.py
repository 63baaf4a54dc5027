"""The bytes that each token stands for.

Owns the two ways in which vocabularies write bytes: GPT-2's characters, and pieces with U+2581 for a space beside byte
tokens. Follows llama.cpp's token_to_piece. Knows nothing about sequences of tokens.
"""

from llmkit.tokenizer.vocab import SPM_SPACE, Attr, Vocab


def _byte_characters() -> list[str]:
    """bytes_to_unicode of GPT-2's encoder.py: visible Latin-1 stands for itself, the other bytes for U+0100 and up, in
    order.
    """
    visible = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return [chr(byte) if byte in visible else chr(256 + hidden.index(byte)) for byte in range(256)]


BYTE_CHARACTERS: tuple[str, ...] = tuple(_byte_characters())
"""The character that byte-level BPE writes each byte as."""

# Plain ints: an IntFlag takes a microsecond for each `&`, four times what the rest of a piece takes.
_HIDDEN = int(Attr.CONTROL | Attr.UNKNOWN)
_USER_DEFINED = int(Attr.USER_DEFINED)
_NORMAL = int(Attr.NORMAL)
_BYTE = int(Attr.BYTE)

_BYTE_OF = {character: bytes([byte]) for byte, character in enumerate(BYTE_CHARACTERS)}


def piece_bytes(vocab: Vocab, id: int, special: bool) -> bytes:
    """The bytes of token `id` (0 <= id < n_vocab). Control tokens and the unknown token are shown, as their text, only
    with `special`; unused ones never. Characters that stand for no byte (no real vocabulary has them) are taken as
    themselves.
    """
    token, attr = vocab.tokens[id], int(vocab.attrs[id])
    if attr & _HIDDEN:
        return token.encode() if special else b""
    if attr & _USER_DEFINED:
        return token.encode()
    if attr & _NORMAL:
        if vocab.pre is not None and vocab.pre.byte_level:
            return b"".join([_BYTE_OF.get(c) or c.encode() for c in token])
        return token.replace(SPM_SPACE, " ").encode()
    if attr & _BYTE:
        return bytes.fromhex(token[3:5])
    return b""
