"""From a body to what the engine is asked for.

Owns what a field means. Knows nothing of the answer, and does not wait: it runs in a thread, since encoding a long
prompt takes a while.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import Any

from llmkit.engine.generation.completion import stop_ids
from llmkit.engine.scheduling.requests import CompletionRequest
from llmkit.errors import UsageError
from llmkit.params import MAX_SEED, GenerateParams, SamplingParams
from llmkit.sampling.options import parse_sampler_seq, parse_samplers
from llmkit.serving.bodies import GenerationFields, SamplingFields
from llmkit.serving.errors import bad_request, not_supported, too_long
from llmkit.serving.prompts import read_logit_bias
from llmkit.serving.served import Served
from llmkit.serving.settings import ServeSettings

MAX_STOPS = 256
MAX_STOP_CHARACTERS = 16384
"""Of a request's stop strings together, and of its sequence breakers: what looks for them grows with each."""
MAX_SAMPLERS = 64
MAX_PROBS = 128
MAX_PROBS_IN_ALL = 65536
"""More than MAX_PROBS for each token are only for few tokens: they are made by Python, and kept until they are sent."""

_SAME_NAME = (
    "seed", "dynatemp_range", "dynatemp_exponent", "top_k", "top_p", "min_p", "top_n_sigma", "xtc_probability",
    "xtc_threshold", "typical_p", "repeat_last_n", "repeat_penalty", "presence_penalty", "frequency_penalty",
    "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "mirostat", "mirostat_tau",
    "mirostat_eta", "adaptive_target", "adaptive_decay", "min_keep", "ignore_eos",
)  # fmt: skip


@dataclass(frozen=True)
class Look:
    """How the answer is to be shown. n_probs: None for no probabilities. echo, prefill: what stands before the answer's
    text: the prompt, or the beginning of the answer that the client gave.
    """

    stream: bool = False
    n_probs: int | None = None
    return_tokens: bool = False
    return_progress: bool = False
    timings_per_token: bool = False
    include_usage: bool = False
    response_fields: tuple[str, ...] = ()
    ping_s: float = 30.0
    echo: str = ""
    prefill: str = ""


def look_of(body: GenerationFields, settings: ServeSettings, n_probs: int | None) -> Look:
    """What the body says of the answer's form."""
    ping = settings.sse_ping_s if body.sse_ping_interval is None else float(body.sse_ping_interval)
    return Look(
        stream=bool(body.stream),
        n_probs=n_probs,
        return_tokens=bool(body.return_tokens),
        return_progress=bool(body.return_progress),
        timings_per_token=bool(body.timings_per_token),
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
        response_fields=tuple(body.response_fields or ()),
        ping_s=ping,
    )


def sampling_of(body: SamplingFields, served: Served) -> SamplingParams:
    """The server's sampling with what the body changes."""
    changes: dict[str, Any] = {name: value for name in _SAME_NAME if (value := getattr(body, name)) is not None}
    if body.temperature is not None:
        changes["temp"] = body.temperature
    if body.dry_sequence_breakers is not None:
        breakers = tuple(text for text in body.dry_sequence_breakers if text)
        changes["dry_sequence_breakers"] = _bounded("dry_sequence_breakers", breakers)
    if body.samplers is not None:
        changes["samplers"] = _samplers(body.samplers)
    if body.logit_bias is not None:
        n_vocab = served.model.config.n_vocab
        changes["logit_bias"] = read_logit_bias(served.tokenizer, n_vocab, body.logit_bias)
    try:
        sampling = replace(served.sampling, **changes)
    except UsageError as error:
        raise bad_request(f"{error.message.replace('temp is', 'temperature is', 1)}. {error.hint}") from None
    # Chosen here, so that the answer can tell it.
    return replace(sampling, seed=secrets.randbelow(MAX_SEED)) if sampling.random_seed else sampling


def _samplers(value: list[str] | str) -> tuple[str, ...]:
    """A list of names, or letters. Names that there are not are passed over, as in llama.cpp."""
    if len(value) > MAX_SAMPLERS:
        raise bad_request(f"Field 'samplers': {len(value)} steps are more than {MAX_SAMPLERS}")
    if isinstance(value, str):
        try:
            return parse_sampler_seq(value)
        except UsageError as error:
            raise bad_request(f"Field 'samplers': {error.message}. {error.hint}") from None
    found: list[str] = []
    for name in value:
        try:
            found += parse_samplers(name)
        except UsageError:
            continue
    return tuple(found)


def refuse_what_is_not_there(body: GenerationFields) -> None:
    """501 for fields of llama.cpp's server that would change the answer and do nothing here."""
    for name in ("lora", "grammar_lazy", "n_cache_reuse"):
        if getattr(body, name):
            raise not_supported(f"This server does not support the field '{name}'")


def completion_request(
    served: Served,
    settings: ServeSettings,
    body: GenerationFields,
    prompt_ids: list[int],
    namespace: str,
    *,
    n_probs: int | None,
    grammar: Any = None,
    points: tuple[int, ...] = (),
) -> CompletionRequest:
    """What the engine is asked for. 400 for what cannot be: a prompt that is too long, a slot that there is not."""
    if len(prompt_ids) >= served.n_ctx:
        raise too_long(len(prompt_ids), served.n_ctx)
    n_cmpl = body.n_cmpl or 1
    if n_cmpl > served.n_slots:
        raise bad_request(f"Field 'n_cmpl': Value must be between 1 <= value <= {served.n_slots}, but got {n_cmpl}")
    id_slot = -1 if body.id_slot is None else body.id_slot
    if id_slot >= served.n_slots:
        raise bad_request(f"Field 'id_slot': Value must be between -1 <= value <= {served.n_slots - 1}")
    n_predict = settings.n_predict if body.n_predict is None else body.n_predict
    stops = _stops(served.stops if body.stop is None else tuple(body.stop))
    limit_ms = -1 if body.t_max_predict_ms is None else body.t_max_predict_ms
    return CompletionRequest(
        prompt_ids=prompt_ids,
        params=GenerateParams(n_predict, n_logprobs=n_probs, after_sampling=bool(body.post_sampling_probs)),
        sampling=sampling_of(body, served),
        stops=stops,
        stop_ids=stop_ids(served.tokenizer, stops),
        namespace=namespace,
        cache_prompt=settings.cache_prompt if body.cache_prompt is None else body.cache_prompt,
        points=points,
        id_slot=id_slot,
        n_cmpl=n_cmpl,
        grammar=grammar if grammar is not None else grammar_of(served, body),
        t_max_predict_s=limit_ms / 1e3 if limit_ms > 0 else None,
        n_indent=body.n_indent or 0,
        deadline_s=settings.timeout_s,
        n_keep=_n_keep(settings.n_keep if body.n_keep is None else body.n_keep, prompt_ids, served.n_ctx),
        n_discard=body.n_discard or 0,
    )  # fmt: skip


def _stops(stops: tuple[str, ...]) -> tuple[str, ...]:
    if "" in stops:
        raise bad_request("Field 'stop': an empty string would end every text")
    return _bounded("stop", stops)


def _bounded(name: str, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Texts that are looked for while tokens are chosen: a few, not a dictionary."""
    if len(texts) > MAX_STOPS:
        raise bad_request(f"Field '{name}': {len(texts)} strings are more than {MAX_STOPS}")
    if sum(map(len, texts)) > MAX_STOP_CHARACTERS:
        raise bad_request(f"Field '{name}': the strings have more than {MAX_STOP_CHARACTERS} characters")
    return texts


def checked(served: Served, requests: list[CompletionRequest]) -> list[CompletionRequest]:
    """The requests of a call; 400 if they ask for more probabilities than a server for many can make."""
    n_probs, n_tokens = min(requests[0].params.n_logprobs or 0, served.model.config.n_vocab), 0
    for request in requests:
        n_predict = request.params.n_predict
        n_tokens += request.n_cmpl * (served.n_ctx if n_predict < 0 else min(n_predict, served.n_ctx))
    if n_probs > MAX_PROBS and n_probs * n_tokens > MAX_PROBS_IN_ALL:
        most = f"{MAX_PROBS} for each token, or {MAX_PROBS_IN_ALL} in all"
        raise bad_request(f"{n_probs} probabilities for each of {n_tokens} tokens are too many; at most {most}")
    return requests


def _n_keep(n_keep: int, prompt_ids: list[int], n_ctx: int) -> int:
    """-1 keeps the prompt; more than the context holds cannot be kept."""
    if n_keep == -1:
        return len(prompt_ids)
    return min(n_keep, n_ctx - 1)


def grammar_of(served: Served, body: GenerationFields) -> Any:
    """What the body's `grammar` or `json_schema` allow, or None."""
    if body.grammar:
        if body.json_schema is not None:
            raise bad_request('Either "json_schema" or "grammar" can be specified, but not both')
        return served.grammars.from_gbnf(body.grammar)
    if body.json_schema is not None:
        return served.grammars.from_json_schema(body.json_schema)
    return None


def generation_settings(request: CompletionRequest, look: Look, grammar: str = "") -> dict[str, Any]:
    """What a request came to, under llama.cpp's names."""
    sampling, params = request.sampling, request.params
    return {
        **sampling_settings(sampling),
        "dry_sequence_breakers": list(sampling.dry_sequence_breakers),
        "stop": list(request.stops),
        "max_tokens": params.n_predict,
        "n_predict": params.n_predict,
        "n_keep": request.n_keep,
        "n_discard": request.n_discard,
        "stream": look.stream,
        "logit_bias": [
            {"bias": None if bias == float("-inf") else bias, "token": token} for token, bias in sampling.logit_bias
        ],
        "n_probs": look.n_probs or 0,
        "grammar": grammar,
        "timings_per_token": look.timings_per_token,
        "post_sampling_probs": params.after_sampling,
        "lora": [],
    }


def sampling_settings(sampling: SamplingParams) -> dict[str, Any]:
    """The part that is about choosing tokens."""
    settings = {name: getattr(sampling, name) for name in _SAME_NAME}
    return {**settings, "temperature": sampling.temp, "samplers": list(sampling.samplers)}
