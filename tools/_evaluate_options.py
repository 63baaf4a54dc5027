"""The options that the commands over a text share; names as in llama.cpp's perplexity tool."""

from typing import Annotated

import typer

TextOption = Annotated[
    str | None, typer.Option("-f", "--file", metavar="FILE", help="The text, or the tasks; - is stdin, as is a pipe.")
]
ChunkSizeOption = Annotated[
    int | None, typer.Option("-c", "--ctx-size", metavar="N", help="Tokens of a chunk.  [default: 512]")
]
ChunksOption = Annotated[int, typer.Option("--chunks", metavar="N", help="Chunks to compute at most; -1: all.")]
BatchOption = Annotated[
    int, typer.Option("-b", "--batch-size", metavar="N", help="Tokens at once: N / -c chunks are computed together.")
]

N_CTX = 512
"""The tokens of a chunk when -c is not given."""

BLOCK = 32
"""Cells that a sequence takes at a time."""


def n_together(n_batch: int, length: int) -> int:
    """Chunks of `length` tokens that are computed together."""
    return max(1, n_batch // length)


def cells(n_seq: int, length: int) -> int:
    """The context that n_seq sequences of `length` tokens need."""
    return n_seq * -(-length // BLOCK) * BLOCK
