"""The obvious twin of llmkit.tokenizer: llama.cpp's algorithms written as they read, slow, on plain lists and dicts.

Owns nothing but the algorithms; imports nothing of llmkit. Pre-tokenizers are given as Python regular expressions over
the few characters that the tests use.
"""

import re
from collections.abc import Sequence
from itertools import pairwise

SPACE = "▁"


def spm_ids(text: str, ids: dict[str, int], scores: Sequence[float], formable: set[str]) -> list[int]:
    """Joins the best-scored neighbours, leftmost first, until nothing can be joined; what is left is a token or bytes.

    `text` has its spaces escaped. Only `formable` tokens result from joining; every other character must be one too.
    """
    symbols = list(text)
    while True:
        pairs = [(-scores[ids[a + b]], i) for i, (a, b) in enumerate(pairwise(symbols)) if a + b in formable]
        if not pairs:
            break
        _, i = min(pairs)
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
    out: list[int] = []
    for symbol in symbols:
        out += [ids[symbol]] if symbol in formable else [ids[f"<0x{byte:02X}>"] for byte in symbol.encode()]
    return out


def bpe_word_ids(word: str, ids: dict[str, int], merges: Sequence[tuple[str, str]], ignore_merges: bool) -> list[int]:
    """Joins the pair with the best rank, leftmost first. `word` is written in the characters of the vocabulary."""
    if ignore_merges and word in ids:
        return [ids[word]]
    rank: dict[tuple[str, str], int] = {}
    for i, pair in enumerate(merges):
        rank.setdefault(pair, i)
    symbols = list(word)
    while True:
        pairs = [(rank[pair], i) for i, pair in enumerate(pairwise(symbols)) if pair in rank]
        if not pairs:
            return [ids[symbol] for symbol in symbols if symbol in ids]
        _, i = min(pairs)
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]


def words(text: str, regexes: Sequence[str]) -> list[str]:
    """Cuts the text by one regex after another: matches and what lies between them are the pieces for the next."""
    pieces = [text]
    for regex in regexes:
        next_pieces = []
        for piece in pieces:
            end = 0
            for match in re.finditer(regex, piece):
                next_pieces += [piece[end : match.start()], match.group()]
                end = match.end()
            next_pieces.append(piece[end:])
        pieces = [piece for piece in next_pieces if piece]
    return pieces


def split_special(
    text: str, tokens: Sequence[tuple[str, int]], lstrip: Sequence[int] = (), rstrip: Sequence[int] = ()
) -> list[str | int]:
    """llama.cpp's tokenizer_st_partition: token by token, the longest (in bytes) first, each over all fragments."""
    fragments: list[str | int] = [text] if text else []
    for token, id in sorted(tokens, key=lambda item: (-len(item[0].encode()), item[1])):
        out: list[str | int] = []
        for fragment in fragments:
            if isinstance(fragment, int):
                out.append(fragment)
                continue
            rest = fragment
            while token in rest:
                at = rest.index(token)
                left, rest = rest[:at], rest[at + len(token) :]
                left = left.rstrip(" \t\n\v\f\r") if id in lstrip else left
                rest = rest.lstrip(" \t\n\v\f\r") if id in rstrip else rest
                out += [left, id] if left else [id]
            out += [rest] if rest else []
        fragments = out
    return fragments
