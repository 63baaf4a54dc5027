"""Whether llmkit runs a file, and why not: the same checks as loading it, in the same order, without computing."""

from __future__ import annotations

from dataclasses import dataclass

from llmkit.errors import LlmkitError
from llmkit.files.gguf_reader import GgufFile
from llmkit.models.outline import Outlined, outline_model
from llmkit.tokenizer.special_tokens import special_tokens
from llmkit.tokenizer.vocab import read_vocab


@dataclass(frozen=True)
class Verdict:
    """`model` is None where the file does not run as a model; then `why_not` says why, and `hint` what helps.

    text: whether text can be turned into ids; tokenizer: its kind, or why it does not run.
    """

    model: Outlined | None
    why_not: str
    hint: str
    text: bool
    tokenizer: str


def judge(gguf: GgufFile, n_ctx: int = 0) -> Verdict:
    """What loading the file for a context of n_ctx tokens (0: as trained) would say."""
    model, why_not, hint = None, "", ""
    if not gguf.tensors:
        why_not = "the file holds no tensors: it is a vocabulary, or metadata only"
    else:
        try:
            model = outline_model(gguf, n_ctx)
        except LlmkitError as error:
            why_not, hint = error.message, error.hint
    return Verdict(model, why_not, hint, *_tokenizer(gguf))


def _tokenizer(gguf: GgufFile) -> tuple[bool, str]:
    try:
        vocab = read_vocab(gguf)
        special = special_tokens(vocab)
    except LlmkitError as error:
        return False, error.message
    kind = f"{vocab.model}, {vocab.pre.name}" if vocab.pre else vocab.model
    return True, f"{kind}, {len(vocab.tokens)} tokens, {len(special.found)} of them special"
