"""The options that the commands over a text share; names as in llama.cpp's perplexity tool."""

from dataclasses import replace
from typing import Annotated

import typer

from llmkit.params import ContextParams

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


def n_together(n_batch: int, length: int) -> int:
    """Chunks of `length` tokens that are computed together."""
    return max(1, n_batch // length)


def holding(context: ContextParams, n_seq: int, length: int) -> ContextParams:
    """`context` for n_seq sequences of up to `length` tokens each."""
    return replace(context, n_ctx=length, n_seq_max=n_seq, kv_unified=False)
