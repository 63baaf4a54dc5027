"""Numbers and lists that native and OpenAI answers share: timings, usage, probabilities.

Owns their form, which is llama.cpp's.
"""

import math
from collections.abc import Sequence
from typing import Any

from llmkit.engine.generation.logprobs import Logprobs, TokenLogprob
from llmkit.engine.scheduling.requests import RequestTimings
from llmkit.serving.calls import Answer
from llmkit.tokenizer import Tokenizer

_LEAST = -3.4028234663852886e38


def timings_json(timings: RequestTimings) -> dict[str, float | int]:
    """Milliseconds and rates; 0 where there is nothing to divide by. queue_ms and first_token_ms are ours."""
    return {
        "cache_n": timings.cache_n,
        "prompt_n": timings.prompt_n,
        "prompt_ms": timings.prompt_s * 1e3,
        "prompt_per_token_ms": _ratio(timings.prompt_s * 1e3, timings.prompt_n),
        "prompt_per_second": _ratio(timings.prompt_n, timings.prompt_s),
        "predicted_n": timings.predicted_n,
        "predicted_ms": timings.predicted_s * 1e3,
        "predicted_per_token_ms": _ratio(timings.predicted_s * 1e3, timings.predicted_n),
        "predicted_per_second": _ratio(timings.predicted_n, timings.predicted_s),
        "queue_ms": timings.queue_s * 1e3,
        "first_token_ms": (timings.first_token_s or 0.0) * 1e3,
    }


def _ratio(a: float, b: float) -> float:
    return a / b if b > 0 else 0.0


def usage_json(answers: Sequence[Answer], n_prompts: Sequence[int]) -> dict[str, Any]:
    """What a call cost. n_prompts: tokens of each prompt. Cached tokens are those of each prompt's first answer."""
    completion = sum(len(answer.ids) for answer in answers)
    cached = sum(answer.end.timings.cache_n for answer in answers if answer.end is not None and answer.index == 0)
    prompt = sum(n_prompts)
    return {
        "completion_tokens": completion,
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def note(notes: dict[str, object], answers: Sequence[Answer]) -> None:
    """What the log says of answers."""
    ends = [answer.end for answer in answers if answer.end is not None]
    notes["prompt"] = sum(end.timings.prompt_n for end in ends)
    notes["cached"] = sum(end.timings.cache_n for end in ends)
    notes["generated"] = sum(len(answer.ids) for answer in answers)


def probabilities(
    tokenizer: Tokenizer, ids: Sequence[int], logprobs: Sequence[Logprobs], *, after_sampling: bool = False
) -> list[dict[str, Any]]:
    """For each token its log-probability and those of the best; after sampling they are probabilities, as `prob`."""
    top_name = "top_probs" if after_sampling else "top_logprobs"
    return [
        {
            **_entry(tokenizer, entry.chosen, after_sampling),
            top_name: [_entry(tokenizer, top, after_sampling) for top in entry.top],
        }
        for _, entry in zip(ids, logprobs, strict=False)
    ]


def _entry(tokenizer: Tokenizer, token: TokenLogprob, after_sampling: bool) -> dict[str, Any]:
    piece = tokenizer.piece_bytes(token.id)
    value = {"prob": math.exp(token.logprob)} if after_sampling else {"logprob": max(token.logprob, _LEAST)}
    return {"id": token.id, "token": piece.decode("utf-8", "replace"), "bytes": list(piece), **value}
