"""Answers that tell what is served, and those that only turn texts into other texts.

Owns /props, /v1/models, /tokenize, /detokenize, /apply-template. Nothing here waits for the engine.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llmkit.serving.bodies import Detokenize, SamplingFields, Tokenize
from llmkit.serving.completion import Look, sampling_of, sampling_settings
from llmkit.serving.errors import bad_request
from llmkit.serving.openai import FINGERPRINT
from llmkit.serving.served import Served
from llmkit.serving.settings import ServeSettings

_VOCAB_TYPES = {"llama": 1, "gpt2": 2, "bert": 3}


def props_json(served: Served, settings: ServeSettings) -> dict[str, Any]:
    """GET /props."""
    params = {
        **sampling_settings(served.sampling),
        "max_tokens": settings.n_predict,
        "n_predict": settings.n_predict,
        "n_keep": settings.n_keep,
        "n_discard": 0,
        "stream": Look().stream,
        "n_probs": 0,
        "timings_per_token": False,
        "post_sampling_probs": False,
        "lora": [],
    }
    return {
        "default_generation_settings": {"params": params, "n_ctx": served.n_ctx},
        "total_slots": served.n_slots,
        "model_alias": served.name,
        "model_ftype": _file_type(served),
        "model_path": str(served.model.gguf.path),
        "modalities": {"vision": False, "video": False, "audio": False},
        "endpoint_slots": settings.slots,
        "endpoint_props": settings.props,
        "endpoint_metrics": settings.metrics,
        "ui": False,
        "ui_settings": {},
        "chat_template": served.template.source,
        "chat_template_caps": {
            "supports_string_content": True,
            "supports_system_role": True,
            "supports_tools": False,
            "supports_tool_calls": False,
        },
        "bos_token": _token_text(served, served.tokenizer.bos_id),
        "eos_token": _token_text(served, served.tokenizer.eos_id),
        "build_info": FINGERPRINT,
        "is_sleeping": False,
        "cors_proxy_enabled": False,
    }


def _token_text(served: Served, id: int | None) -> str:
    return "" if id is None else served.tokenizer.piece_bytes(id, special=True).decode("utf-8", "replace")


def _file_type(served: Served) -> str:
    """The name of the file's type: Q4_K_M."""
    from gguf import LlamaFileType

    number = served.model.gguf.u32("general.file_type", 0)
    known = number in LlamaFileType._value2member_map_
    return LlamaFileType(number).name.removeprefix("MOSTLY_").removeprefix("ALL_") if known else "unknown"


def change_props(served: Served, value: dict[str, Any]) -> None:
    """POST /props: new defaults of sampling, bare or in the form that GET /props shows them."""
    from llmkit.serving.json_body import validated

    nested = value.get("default_generation_settings")
    inner = nested.get("params", {}) if isinstance(nested, dict) else value
    body = validated(SamplingFields, inner)
    if body.seed is not None:
        raise bad_request("Field 'seed': a seed for all requests would make them all alike; give it with each")
    served.sampling = replace(sampling_of(body, served), seed=served.sampling.seed)


def models_json(served: Served, settings: ServeSettings) -> dict[str, Any]:
    """GET /v1/models: OpenAI's list, with llama.cpp's `meta`, and the list that Ollama's clients look for."""
    gguf, config = served.model.gguf, served.model.config
    item = {
        "id": served.name,
        "aliases": list(settings.aliases) or [served.name],
        "tags": [],
        "object": "model",
        "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
        "created": served.created,
        "owned_by": "llamacpp",
        "meta": {
            "vocab_type": _VOCAB_TYPES.get(gguf.str("tokenizer.ggml.model", "") or "", 0),
            "n_vocab": config.n_vocab,
            "n_ctx": served.n_ctx,
            "n_ctx_train": config.n_ctx_train,
            "n_embd": config.n_embd,
            "n_params": sum(tensor.n_elements for tensor in gguf.tensors.values()),
            "size": sum(tensor.n_bytes for tensor in gguf.tensors.values()),
            "ftype": _file_type(served),
        },
    }
    old = {
        "name": served.name,
        "model": served.name,
        "type": "model",
        "capabilities": ["completion"],
        "details": {"format": "gguf", "family": served.model.arch, "quantization_level": _file_type(served)},
    }
    return {"models": [old], "object": "list", "data": [item]}


def tokenize_json(served: Served, body: Tokenize) -> dict[str, Any]:
    """POST /tokenize. A piece that is no UTF-8 by itself is a list of bytes."""
    tokenizer = served.tokenizer
    ids = tokenizer.encode(body.content, add_special=body.add_special, parse_special=body.parse_special)
    if not body.with_pieces:
        return {"tokens": ids}
    return {"tokens": [{"id": id, "piece": _piece(tokenizer.piece_bytes(id, special=True))} for id in ids]}


def _piece(piece: bytes) -> str | list[int]:
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError:
        return list(piece)


def detokenize_json(served: Served, body: Detokenize) -> dict[str, Any]:
    """POST /detokenize. 400 for ids that the model does not have."""
    if bad := [id for id in body.tokens if id >= served.model.config.n_vocab]:
        raise bad_request(f"Field 'tokens': {bad[0]} is no token of this model")
    return {"content": served.tokenizer.decode(body.tokens, special=True)}
