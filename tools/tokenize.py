"""`llmkit tokenize`: turns text into token ids.

Owns the options and the formats. Reads the vocabulary only, so files without tensors will do. Options that llama.cpp
has are named as there; unlike there, only -p knows escapes, and without -p and -f the text is what is piped in.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from llmkit import report
from llmkit.errors import UsageError

from ._options import EscapeOption, FileOption, ModelOption, PromptOption

if TYPE_CHECKING:
    from llmkit.tokenizer import Tokenizer


@dataclass(frozen=True)
class TokenizeOptions:
    """What to tokenize, how, and how to show it. At most one of prompt and file is given; neither means stdin."""

    model: str | None = None
    prompt: str | None = None
    file: str | None = None
    escape: bool = True
    no_bos: bool = False
    no_parse_special: bool = False
    as_ids: bool = False
    as_json: bool = False
    show_count: bool = False


def tokenize_cli(
    model: ModelOption = None,
    prompt: PromptOption = None,
    file: FileOption = None,
    escape: EscapeOption = True,
    no_bos: Annotated[
        bool, typer.Option("--no-bos", help="Add no tokens that the text does not hold, such as BOS.")
    ] = False,
    no_parse_special: Annotated[
        bool, typer.Option("--no-parse-special", help="Take control tokens written in the text for plain text.")
    ] = False,
    as_ids: Annotated[bool, typer.Option("--ids", help="Print the ids as one list: [1, 2, 3].")] = False,
    as_json: Annotated[bool, typer.Option("--json", help='Print one JSON object: {"ids": [1, 2, 3]}.')] = False,
    show_count: Annotated[bool, typer.Option("--show-count", help="Give the number of tokens too.")] = False,
) -> int:
    """Turn text into tokens: an id and its piece a line.

    The text comes from -p, from -f, or from stdin, verbatim.
    """
    return tokenize(TokenizeOptions(model, prompt, file, escape, no_bos, no_parse_special, as_ids, as_json, show_count))


def tokenize(options: TokenizeOptions) -> int:
    """Tokenizes the text and shows the tokens; returns the exit code, 0."""
    from llmkit.files.gguf_reader import open_gguf
    from llmkit.files.models_table import resolve_model
    from llmkit.tokenizer import load_tokenizer

    from ._prompt import read_prompt

    if options.as_ids and options.as_json:
        raise UsageError("--ids and --json exclude each other", "Give one of them.")
    path = resolve_model(options.model)
    text = read_prompt(options.prompt, options.file, escape=options.escape)
    with open_gguf(path) as gguf:
        tokenizer = load_tokenizer(gguf)
    ids = tokenizer.encode(text, add_special=not options.no_bos, parse_special=not options.no_parse_special)
    _show(options, tokenizer, ids)
    return 0


def _show(options: TokenizeOptions, tokenizer: "Tokenizer", ids: list[int]) -> None:
    if options.as_json:
        report.result_json({"ids": ids} | ({"n_tokens": len(ids)} if options.show_count else {}))
        return
    if options.as_ids:
        report.result(str(ids))
    else:
        report.result("".join(_line(tokenizer, id) for id in ids), end="")
    if options.show_count:
        report.result(f"Total number of tokens: {len(ids)}")


def _line(tokenizer: "Tokenizer", id: int) -> str:
    """A token as llama.cpp prints it, with its raw text; a part of a character, which is no text, as U+FFFD."""
    piece = tokenizer.piece_bytes(id, special=True).decode("utf-8", "replace")
    return f"{id:6d} -> '{piece}'\n"
