"""The table of pre-tokenizers: how text is cut into words before BPE joins bytes, by the name in `tokenizer.ggml.pre`.

Owns the lookup and its refusals. The table is pretokenizers.json, which notes its source.
"""

import json
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files

from llmkit.errors import TokenizerError


@dataclass(frozen=True)
class PreTokenizer:
    """`regexes` are applied one after another to each piece of the last one. `byte_level`: bytes are written as GPT-2's
    characters, else spaces as U+2581. `ignore_merges`: a word that is a token is not taken apart. `add_bos`, `add_sep`:
    what holds when the file does not say.
    """

    name: str
    regexes: tuple[str, ...]
    byte_level: bool
    ignore_merges: bool
    add_bos: bool
    add_sep: bool


def pre_tokenizer(name: str | None) -> PreTokenizer:
    """The entry of the table; TokenizerError for no name, an unknown one and one that cannot be run.

    llmkit never guesses: a wrong pre-tokenizer gives other ids without any sign of it.
    """
    table = json.loads(files(__package__).joinpath("pretokenizers.json").read_text("utf-8"))
    if name is None:
        raise TokenizerError("the file does not name its pre-tokenizer (tokenizer.ggml.pre is missing)", _SET_IT)
    for kind in table["kinds"]:
        if name in kind["names"]:
            flags = (kind["byte_level"], kind["ignore_merges"], kind["add_bos"], kind["add_sep"])
            return PreTokenizer(name, tuple(kind["regexes"]), *flags)
    if name in table["refused"]:
        raise TokenizerError(f"the pre-tokenizer {name} does not run in llmkit: it {table['refused'][name]}", _IDS_RUN)
    names = sorted(name for kind in table["kinds"] for name in kind["names"])
    close = get_close_matches(name, names, n=1)
    guess = f"Did you mean {close[0]}? " if close else ""
    raise TokenizerError(f"unknown pre-tokenizer {name[:80]!r}", f"{guess}llmkit knows: {', '.join(names)}.")


_IDS_RUN = "Models of this file run on token ids only."
_SET_IT = (
    "Fetch a newer conversion of the model, or write the name into the file: gguf-new-metadata --pre-tokenizer NAME "
    "OLD NEW, with the name by which llama.cpp's converter knows the model's tokenizer. (llama.cpp itself would take "
    "`default`, which is seldom right.)"
)
