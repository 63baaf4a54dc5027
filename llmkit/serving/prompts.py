"""Prompts as bodies write them: a text, ids, both mixed, or a list of these; what stands for tokens in other fields.

Owns the forms, which are llama.cpp's. Knows no template.
"""

import math
from typing import Any

from llmkit.serving.errors import ApiError, bad_request, not_supported, too_long
from llmkit.serving.json_body import json_type
from llmkit.serving.served import Served
from llmkit.tokenizer import Tokenizer

MAX_PROMPTS = 256
"""In one request."""

_FORMS = (
    '"prompt" elements must be a string, a list of tokens, a JSON object containing a prompt string, or a list of '
    "mixed strings & tokens."
)


def read_prompts(served: Served, value: Any) -> list[list[int]]:
    """The ids of each prompt; 400 for what is none, or for an id that the model does not have."""
    several = isinstance(value, list) and not _is_one(value)
    values = value if several else [value]
    if not values:
        raise bad_request('"prompt" must not be empty')
    if len(values) > MAX_PROMPTS:
        raise bad_request(f'"prompt" holds {len(values)} prompts, more than {MAX_PROMPTS}')
    return [_read_one(served, item) for item in values]


def _is_one(value: list[Any]) -> bool:
    """Whether a list is one prompt: of ids, or of ids and texts."""
    return any(_is_id(item) for item in value)


def _is_id(item: object) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)


def _read_one(served: Served, value: Any) -> list[int]:
    tokenizer, n_vocab = served.tokenizer, served.model.config.n_vocab
    if isinstance(value, dict) and isinstance(value.get("prompt_string"), str):
        if value.get("multimodal_data"):
            raise not_supported("This server does not support multimodal prompts")
        value = value["prompt_string"]
    if isinstance(value, str):
        check_length(served, value)
        ids = tokenizer.encode(value)
    elif isinstance(value, list) and value and all(_is_id(item) or isinstance(item, str) for item in value):
        ids = _mixed(tokenizer, value)
    else:
        raise bad_request(_FORMS)
    if not ids:
        raise bad_request('"prompt" must not be empty')
    if any(not 0 <= token < n_vocab for token in ids):
        raise bad_request("Prompt contains invalid tokens")
    return ids


def check_length(served: Served, text: str) -> None:
    """400 for a text that cannot fit, whatever its tokens are: one of megabytes is not encoded to find that out.

    Blanks do not count: some special tokens swallow those beside them.
    """
    if len(text) > served.n_ctx:
        n_least = (len(text) - sum(map(text.count, " \t\r\n"))) // served.longest_piece
        if n_least >= served.n_ctx:
            raise too_long(n_least, served.n_ctx)


def _mixed(tokenizer: Tokenizer, items: list[Any]) -> list[int]:
    """Ids as they are; a text at the beginning gets what the model puts before a text."""
    ids: list[int] = []
    for i, item in enumerate(items):
        ids += [item] if isinstance(item, int) else tokenizer.encode(item, add_special=i == 0)
    return ids


def read_logit_bias(
    tokenizer: Tokenizer, n_vocab: int, value: list[Any] | dict[str, Any]
) -> tuple[tuple[int, float], ...]:
    """(id, bias) from [[token, bias], ...] or {token: bias}; a token is an id or a text, false rules it out.

    As in llama.cpp, ids that the model does not have are passed over.
    """
    pairs: list[Any] = list(value.items()) if isinstance(value, dict) else value
    if len(pairs) > n_vocab:
        raise bad_request(f"Field 'logit_bias': {len(pairs)} entries are more than the model has tokens ({n_vocab})")
    found: list[tuple[int, float]] = []
    for pair in pairs:
        if isinstance(pair, dict) and "token" in pair:
            pair = [pair["token"], pair.get("bias")]
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise bad_request("Field 'logit_bias': each entry must be a pair of a token and a bias")
        bias = _bias(pair[1])
        found += [(token, bias) for token in _tokens(tokenizer, pair[0]) if 0 <= token < n_vocab]
    return tuple(found)


def _bias(value: Any) -> float:
    if value is False:
        return -math.inf
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise bad_request(f"Field 'logit_bias': a bias must be a number or false, but is {json_type(value)}")
    return float(max(-1e30, min(1e30, value)))


def _tokens(tokenizer: Tokenizer, value: Any) -> list[int]:
    if _is_id(value):
        return [value]
    if not isinstance(value, str):
        raise bad_request(f"Field 'logit_bias': a token must be an id or a text, but is {json_type(value)}")
    if value.lstrip("-").isdecimal() and value.isascii():  # a JSON object has no other keys
        return [int(value)] if len(value) <= 10 else []
    return tokenizer.encode(value, add_special=False)


def infill_ids(served: Served, prefix: str, suffix: str, extra: list[Any]) -> list[int]:
    """The prompt for filling a gap, in the order prefix, suffix, middle; 501 if the model has no tokens for it.

    Other files stand in front, each behind the token that separates files.
    """
    tokenizer, ids = served.tokenizer, served.tokenizer.fim_ids
    missing = [name for name in ("pre", "suf", "mid") if f"fim_{name}" not in ids]
    if missing:
        words = {"pre": "prefix", "suf": "suffix", "mid": "middle"}
        lacks = " ".join(f"{words[name]} token is missing." for name in missing)
        raise ApiError("not_supported_error", f"Infill is not supported by this model: {lacks}")

    def plain(text: str) -> list[int]:
        check_length(served, text)
        return tokenizer.encode(text, add_special=False, parse_special=False)

    prompt = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    for file in extra:
        name, text = file.get("filename", ""), file.get("text", "")
        if not isinstance(name, str) or not isinstance(text, str):
            raise bad_request('extra_context chunk must contain a "text" field with a string value')
        if "fim_sep" in ids:
            prompt += [ids["fim_sep"], *plain(f"{name}\n")]
        else:
            prompt += plain(f"\n\n--- {name} ---\n\n")
        prompt += plain(text)
    return [*prompt, ids["fim_pre"], *plain(prefix), ids["fim_suf"], *plain(suffix), ids["fim_mid"]]
