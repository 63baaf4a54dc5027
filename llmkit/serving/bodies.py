"""The bodies of completion requests: their fields, names and types.

Owns what is asked for. What a field means is completion.py's and chat.py's; ranges of sampling are llmkit/params.py's.
"""

from typing import Any

from pydantic import AliasChoices, ConfigDict, Field

from llmkit.serving.fields import INT_MAX, Body, Number, Prompt, Seed, Texts, whole


def _or(*names: str) -> Any:
    """A field with several names; the first that is given counts."""
    return Field(None, validation_alias=AliasChoices(*names))


class StreamOptions(Body):
    """How a stream is to look."""

    include_usage: bool | None = None


class SamplingFields(Body):
    """How tokens are chosen. Absent: what the server was started with."""

    seed: Seed | None = None
    temperature: Number | None = _or("temperature", "temp")
    dynatemp_range: Number | None = None
    dynatemp_exponent: Number | None = None
    top_k: whole(-1) | None = None  # type: ignore[valid-type]
    top_p: Number | None = None
    min_p: Number | None = None
    top_n_sigma: Number | None = None
    xtc_probability: Number | None = None
    xtc_threshold: Number | None = None
    typical_p: Number | None = _or("typical_p", "typ_p")
    repeat_last_n: whole(-1) | None = None  # type: ignore[valid-type]
    repeat_penalty: Number | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    dry_multiplier: Number | None = None
    dry_base: Number | None = None
    dry_allowed_length: whole(0) | None = None  # type: ignore[valid-type]
    dry_penalty_last_n: whole(-1) | None = None  # type: ignore[valid-type]
    dry_sequence_breakers: list[str] | None = None
    mirostat: whole(0, 2) | None = None  # type: ignore[valid-type]
    mirostat_tau: Number | None = None
    mirostat_eta: Number | None = None
    adaptive_target: Number | None = None
    adaptive_decay: Number | None = None
    min_keep: whole(0) | None = None  # type: ignore[valid-type]
    ignore_eos: bool | None = None
    samplers: list[str] | str | None = None
    logit_bias: list[Any] | dict[str, Any] | None = None


class GenerationFields(SamplingFields):
    """What all completions take, native and OpenAI's."""

    n_predict: whole(-1) | None = _or("n_predict", "max_tokens", "max_completion_tokens")  # type: ignore[valid-type]
    n_keep: whole(-1) | None = None  # type: ignore[valid-type]
    n_discard: whole(0) | None = None  # type: ignore[valid-type]
    n_cmpl: whole(1, 1024) | None = _or("n_cmpl", "n")  # type: ignore[valid-type]
    n_indent: whole(0) | None = None  # type: ignore[valid-type]
    t_max_predict_ms: whole(-1) | None = None  # type: ignore[valid-type]
    id_slot: whole(-1) | None = None  # type: ignore[valid-type]
    cache_prompt: bool | None = None
    n_cache_reuse: whole(0) | None = None  # type: ignore[valid-type]
    stop: Texts | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    timings_per_token: bool | None = None
    return_progress: bool | None = None
    return_tokens: bool | None = None
    response_fields: list[str] | None = None
    post_sampling_probs: bool | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | bool | None = None
    grammar_lazy: bool | None = None
    lora: list[Any] | None = None
    sse_ping_interval: whole(-1, 86400) | None = None  # type: ignore[valid-type]


class NativeCompletion(GenerationFields):
    """POST /completion. prompt: a text, ids, both mixed, or a list of these."""

    prompt: Prompt
    n_probs: whole(0) | None = _or("n_probs", "logprobs")  # type: ignore[valid-type]


class OpenAICompletion(GenerationFields):
    """POST /v1/completions."""

    prompt: Prompt
    model: str | None = None
    n_probs: whole(0) | None = _or("n_probs", "logprobs")  # type: ignore[valid-type]
    echo: bool | None = None
    best_of: whole(1) | None = None  # type: ignore[valid-type]
    suffix: str | None = None


class Infill(GenerationFields):
    """POST /infill: what stands before and behind the gap, and other files."""

    input_prefix: str = ""
    input_suffix: str = ""
    input_extra: list[dict[str, Any]] | None = None
    prompt: str | None = None
    n_probs: whole(0) | None = None  # type: ignore[valid-type]


class ResponseFormat(Body):
    """What the answer is to be: text, any JSON object, or JSON of a schema."""

    type: str
    # Named as in the JSON; the base class has a method of that name, which no instance needs.
    schema_: dict[str, Any] | bool | None = Field(None, validation_alias="schema")
    json_schema: dict[str, Any] | None = None


class ChatFields(Body):
    """A conversation and how it becomes a prompt."""

    messages: list[Any] | None = None
    tools: list[Any] | None = None
    functions: list[Any] | None = None
    tool_choice: Any = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | str | None = None
    reasoning_effort: str | None = None
    reasoning_format: str | None = None
    thinking_budget_tokens: whole(-1) | None = None  # type: ignore[valid-type]


class ChatCompletion(GenerationFields, ChatFields):
    """POST /v1/chat/completions."""

    model: str | None = None
    logprobs: bool | None = None
    top_logprobs: whole(0) | None = None  # type: ignore[valid-type]
    response_format: ResponseFormat | None = None
    modalities: list[str] | None = None
    audio: dict[str, Any] | None = None


class Tokenize(Body):
    """POST /tokenize."""

    content: str = ""
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class Detokenize(Body):
    """POST /detokenize."""

    tokens: list[whole(0, INT_MAX)] = Field(default_factory=list)  # type: ignore[valid-type]


class SlotFile(Body):
    """POST /slots/{id}?action=...: the file's name. format: `llmkit`, or `ggsq` for llama.cpp's."""

    filename: str | None = None
    format: str | None = None


class Pin(Body):
    """POST /cache/pin. pinned false lets the prefix go again."""

    id: whole(0, 1 << 62)  # type: ignore[valid-type]
    pinned: bool = True


class AnyObject(Body):
    """POST /props: fields of sampling, or what GET /props gives."""

    model_config = ConfigDict(extra="allow", strict=True)


ALL = (
    NativeCompletion, OpenAICompletion, Infill, ChatFields, ChatCompletion, Tokenize, Detokenize, SlotFile, Pin,
    AnyObject,
)  # fmt: skip
"""For the OpenAPI document."""
