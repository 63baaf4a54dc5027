"""Which tokens end a text, which are never shown, and which are found in a text as a whole.

Owns llama.cpp's lists of texts (llama-vocab.cpp, load, build 11434), because many files name only one of the tokens
that end a turn, or give a control token the type of a word. So `</s>` ends a text in Qwen's and gemma's vocabularies
too, where it is a piece of HTML: as there. Left for later: gemma4's rule (with `<|tool_response>` among the tokens that
end a text, `</s>` is a normal one).
"""

from dataclasses import dataclass, field

import numpy as np

from llmkit.tokenizer.vocab import Attr, Vocab

EOT_TEXTS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>", "_<EOT>",
    "[EOT]", "<｜end▁of▁sentence｜>", "<end_of_utterance>",
)  # fmt: skip
EOM_TEXTS = ("<|eom_id|>",)
EOG_TEXTS = (
    *EOT_TEXTS, *EOM_TEXTS, "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "</s>", "[EOS]", "<eos>", "<turn|>",
    "<|tool_response>", "[e~[",
)  # fmt: skip
FIM_TEXTS = {
    "fim_pre": (
        "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>",
        "<|code_prefix|>", "<|prefix|>",
    ),
    "fim_suf": (
        "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>",
        "<|code_suffix|>", "<|suffix|>",
    ),
    "fim_mid": (
        "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>",
        "<|code_middle|>", "<|middle|>",
    ),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}  # fmt: skip
SHOWN_TEXTS = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")
"""gpt-oss writes its answer between these: they are text, whatever the file says."""


@dataclass(frozen=True)
class SpecialTokens:
    """`eog_ids` end a generation. `found` are the ids looked for in a text as a whole; those in `lstrip` and `rstrip`
    swallow the blanks before or behind them. `fim` are those that mark a gap to fill, by llama.cpp's names: fim_pre ...
    """

    bos_id: int | None
    eos_id: int | None
    eog_ids: frozenset[int]
    found: tuple[int, ...]
    lstrip: frozenset[int]
    rstrip: frozenset[int]
    sep_id: int | None = None
    fim: dict[str, int] = field(default_factory=dict)


def special_tokens(vocab: Vocab) -> SpecialTokens:
    """What is special in this vocabulary; completes `vocab.attrs`, as llama.cpp overrides types by text."""
    ids = dict(vocab.special_ids)
    for name, texts in {"eot": EOT_TEXTS, "eom": EOM_TEXTS, **FIM_TEXTS}.items():
        if name not in ids:
            _find_by_text(vocab, ids, name, texts)
    eog = {ids[name] for name in ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep") if name in ids}
    for text in EOG_TEXTS:
        if text in vocab.ids:
            eog.add(vocab.ids[text])
            vocab.attrs[vocab.ids[text]] |= Attr.CONTROL
    _settle_harmony(vocab, eog)
    found = tuple(np.flatnonzero(vocab.attrs & (Attr.CONTROL | Attr.USER_DEFINED | Attr.UNKNOWN)).tolist())
    lstrip, rstrip = _strips(vocab, found)
    fim = {name: ids[name] for name in FIM_TEXTS if name in ids}
    return SpecialTokens(ids.get("bos"), ids.get("eos"), frozenset(eog), found, lstrip, rstrip, ids.get("sep"), fim)


def _find_by_text(vocab: Vocab, ids: dict[str, int], name: str, texts: tuple[str, ...]) -> None:
    """Takes the first of the vocabulary. (llama.cpp takes any: the order of its hash table.)"""
    present = [vocab.ids[text] for text in texts if text in vocab.ids]
    if present:
        ids[name] = min(present)
        vocab.attrs[ids[name]] |= Attr.CONTROL


def _settle_harmony(vocab: Vocab, eog: set[int]) -> None:
    """gpt-oss and solar-open end a turn with tokens of their own; there, <|end|> only ends a part of the answer."""
    for text in SHOWN_TEXTS:
        if text in vocab.ids:
            vocab.attrs[vocab.ids[text]] = Attr.USER_DEFINED
    texts = {vocab.tokens[id] for id in eog}
    called = texts & {"<|call|>", "<|calls|>"}
    if called and texts & {"<|return|>", "<|flush|>"} and "<|end|>" in texts:
        end = vocab.ids["<|end|>"]
        eog.discard(end)
        vocab.attrs[end] = Attr.USER_DEFINED


def _strips(vocab: Vocab, found: tuple[int, ...]) -> tuple[frozenset[int], frozenset[int]]:
    """The flags that tokenizer.json has and GGUF has not; llama.cpp goes by the names of the models that need them."""
    name, pre = vocab.general_name.lower(), vocab.pre.name if vocab.pre else ""
    jina = any(part in pre for part in ("jina-v2-de", "jina-v2-es", "jina-v2-code"))
    if jina or vocab.arch in ("nomic-bert-moe", "jina-bert-v3"):
        return _present(vocab, "<mask>"), frozenset()
    if "phi-3" in name or "phi3" in name:
        right = (frozenset(found) | _present(vocab, "</s>")) - _present(vocab, "<unk>", "<s>", "<|endoftext|>")
        return frozenset(), right
    if "modern-bert" in name:
        return _present(vocab, "[MASK]"), frozenset()
    return frozenset(), frozenset()


def _present(vocab: Vocab, *texts: str) -> frozenset[int]:
    return frozenset(vocab.ids[text] for text in texts if text in vocab.ids)
