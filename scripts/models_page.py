"""Writes docs/models.md: what runs, from the code that runs it. `python -m scripts.models_page` prints the page.

Owns the page's words; every name in it comes from a table of llmkit.
"""

from __future__ import annotations

import json
from importlib.resources import files

from llmkit.models.family import Family
from llmkit.models.registry import FAMILIES
from llmkit.quants.registry import TYPES

_INTRO = """# What runs

Made by `python -m scripts.models_page` from the tables that decide it; a test compares. Anything else is refused by
name.

## Architectures

The name is what `general.architecture` says in the file. All are text models; a file may have biases, one matrix for
q, k and v, and a tied output where its architecture allows them.
"""
_ROPE = {"pairs": "pairs of neighbours", "halves": "halves", "none": "none"}


def traits(family: Family) -> list[str]:
    """What sets an architecture apart from a plain llama, in a few words each."""
    a, f = family.attention, family.feed_forward
    found = [
        (a.window != "never", "sliding windows"),
        (a.softcap > 0, "capped scores"),
        (a.temperature, "q grows with the position"),
        (family.final_softcap is not None, "capped logits"),
        (a.alibi != "never" or a.alibi_layers > 0, "ALiBi"),
        (a.qk_norm != "none", "norms of q and k"),
        (a.rope_layers != "all", "layers without RoPE"),
        (a.partial_rotary, "partial rotary"),
        (a.sections != "never", "positions in sections"),
        (family.parallel != "no", "parallel residual" + (" where the file says so" if family.parallel_switch else "")),
        (family.post_norm, "norms after each part"),
        (family.multipliers is not None, "multipliers"),
        (f.fused, "gate and up in one matrix"),
    ]
    return [words for true, words in found if true]


def architectures() -> str:
    """A row for each architecture."""
    lines = ["| name | norm | RoPE | feed-forward | experts | besides |", "|---|---|---|---|---|---|"]
    for name, family in sorted(FAMILIES.items()):
        experts = {"never": "", "may": "or dense", "must": "yes"}[family.experts]
        words = [family.norm, _ROPE[family.attention.rope], family.feed_forward.function, experts]
        lines.append(f"| {name} | {' | '.join(words)} | {', '.join(traits(family))} |")
    return "\n".join(lines)


def page() -> str:
    """The whole page."""
    types = "\n".join(f"| {name} | {8 * n_bytes / block:.4g} |" for name, block, n_bytes, *_ in TYPES.values())
    table = json.loads(files("llmkit.tokenizer").joinpath("pretokenizers.json").read_text("utf-8"))
    kinds = table["kinds"]
    names = ", ".join(sorted(name for kind in kinds for name in kind["names"]))
    differ = sorted((", ".join(kind["names"]), kind["llama_cpp"]) for kind in kinds if kind.get("llama_cpp"))
    differences = "\n".join(f"| {names_} | {reason} |" for names_, reason in differ)
    refused = "\n".join(f"| {name} | {reason} |" for name, reason in sorted(table["refused"].items()))
    return f"""{_INTRO}
{architectures()}

RoPE scaling: none, linear, YaRN, factors for each frequency (Llama 3), short and long factors (LongRoPE).

## Tensor types

| type | bits a weight |
|---|---|
{types}

## Vocabularies

SPM (`tokenizer.ggml.model` = `llama`), WordPiece (`bert`) and byte-level BPE (`gpt2`) with these pre-tokenizers:
{names}.

Of these, llama.cpp (b11434) cuts some texts otherwise than the models' own tokenizers, which llmkit follows:

| pre-tokenizer | what llama.cpp does |
|---|---|
{differences}

These are refused by name, as is a file that names none or one that is not known:

| pre-tokenizer | because it |
|---|---|
{refused}
"""


def main() -> None:
    """Prints the page."""
    import sys

    sys.stdout.write(page())


if __name__ == "__main__":
    main()
