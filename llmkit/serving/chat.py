"""From a conversation to a prompt.

Owns what is asked of the messages, in llama.cpp's words, and where in the prompt a message begins. The template's work
is llmkit/tokenizer/chat_template.py's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from llmkit.engine.common_prefix import n_common
from llmkit.serving.bodies import ChatCompletion, ChatFields, ResponseFormat
from llmkit.serving.errors import bad_request, not_supported
from llmkit.serving.prompts import check_length
from llmkit.serving.served import Served
from llmkit.serving.settings import ServeSettings
from llmkit.tokenizer.chat_template import ChatTemplate

MAX_MESSAGES = 4096


@dataclass(frozen=True)
class ChatPrompt:
    """text: the prompt. prefill: the beginning of the answer that the last message gave, "" if it gave none."""

    text: str
    messages: list[dict[str, Any]]
    prefill: str = ""


def read_chat(served: Served, settings: ServeSettings, body: ChatFields) -> ChatPrompt:
    """The prompt of a conversation. 400 for messages that cannot be, 501 for tools and pictures."""
    _refuse(body)
    messages = read_messages(body.messages)
    prefill = _prefill(messages, settings, body)
    template = _template(served, settings, body)
    wanted: dict[str, Any] = dict(settings.template_kwargs)
    if body.reasoning_effort is not None:
        wanted["reasoning_effort"] = body.reasoning_effort
    wanted.update(body.chat_template_kwargs or {})
    if reserved := {"messages", "tools", "add_generation_prompt", "continue_final_message", "bos_token"} & set(wanted):
        raise bad_request(f"Field 'chat_template_kwargs': {sorted(reserved)[0]!r} is not yours to set")
    add_prompt = True if body.add_generation_prompt is None else body.add_generation_prompt
    text = template.render(
        messages, add_generation_prompt=add_prompt, continue_final_message=prefill is not None, **wanted
    )
    return ChatPrompt(text, messages, prefill or "")


def read_messages(value: Any) -> list[dict[str, Any]]:
    """The messages, with their texts as strings."""
    if value is None:
        raise bad_request("'messages' is required")
    if not isinstance(value, list):
        raise bad_request("Expected 'messages' to be an array")
    if not value:
        raise bad_request("'messages' must not be empty")
    if len(value) > MAX_MESSAGES:
        raise bad_request(f"'messages' holds {len(value)} messages, more than {MAX_MESSAGES}")
    return [_message(message) for message in value]


def _message(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise bad_request("Expected each of 'messages' to be an object")
    role, content = value.get("role"), value.get("content")
    if not isinstance(role, str):
        raise bad_request(f"Missing 'role' in message: {json.dumps(value, ensure_ascii=False)[:200]}")
    if value.get("tool_calls") or role in ("tool", "function"):
        raise not_supported("This server does not support tool calls")
    if content is None:
        if role != "assistant":
            raise bad_request("All non-assistant messages must contain 'content'")
        content = ""
    return {**value, "content": _text(content)}


def _text(content: Any) -> str:
    """A string, or the texts of a list of parts, each on its own line as in llama.cpp."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad_request("Expected 'content' to be a string or an array")
    texts = []
    for part in content:
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise bad_request("Expected each part of 'content' to be an object with a 'type'")
        if part["type"] not in ("text", "input_text", "output_text", "refusal"):
            raise not_supported(f"unsupported content[].type: {part['type'][:80]}; this server takes text only")
        text = part.get("refusal" if part["type"] == "refusal" else "text")
        if not isinstance(text, str):
            raise bad_request("Expected a part of type 'text' to have a string 'text'")
        texts.append(text)
    return "\n".join(texts)


def _prefill(messages: list[dict[str, Any]], settings: ServeSettings, body: ChatFields) -> str | None:
    """The text of a last message that is the beginning of the answer, or None."""
    asked = body.continue_final_message
    if asked is None or asked is True:
        last = messages[-1]["role"] == "assistant"
        if last and len(messages) > 1 and messages[-2]["role"] == "assistant":
            raise bad_request("Cannot have 2 or more assistant messages at the end of the list.")
        if last and (asked or settings.prefill_assistant):
            return str(messages[-1]["content"])
        if asked:
            raise bad_request("continue_final_message needs a last message of the assistant")
    return None


def _template(served: Served, settings: ServeSettings, body: ChatFields) -> ChatTemplate:
    """The server's, unless requests may bring their own: a template is a program."""
    if body.chat_template is None:
        return served.template
    if not settings.request_templates:
        raise bad_request("Field 'chat_template': the server was not started with --request-templates")
    tokenizer, texts = served.tokenizer, []
    for token in (tokenizer.bos_id, tokenizer.eos_id):
        texts.append("" if token is None else tokenizer.piece_bytes(token, True).decode("utf-8", "replace"))
    return ChatTemplate(body.chat_template, bos_token=texts[0], eos_token=texts[1])


def _refuse(body: ChatFields) -> None:
    if body.tools or body.functions:
        raise not_supported("This server does not support tools")
    if body.tool_choice not in (None, "none", "auto"):
        raise not_supported("This server does not support tool_choice")
    if body.reasoning_format not in (None, "none", "auto"):
        raise not_supported("This server does not take thoughts apart: reasoning_format can be none")
    if body.thinking_budget_tokens not in (None, -1):
        raise not_supported("This server does not support the field 'thinking_budget_tokens'")
    if isinstance(body, ChatCompletion) and (body.audio or any(kind != "text" for kind in body.modalities or ())):
        raise not_supported("This server answers in text only")


def chat_ids(served: Served, prompt: ChatPrompt) -> tuple[list[int], tuple[int, ...]]:
    """The prompt's ids, and where in them a user's first and last message begin.

    There another conversation may go on from here, which a model with windows has to know beforehand.
    """
    check_length(served, prompt.text)
    ids = _encode(served, prompt.text)
    if not any(served.model.config.windows):
        return ids, ()
    places, at = [], 0
    for message in prompt.messages:
        found = prompt.text.find(message["content"], at)
        if message["role"] == "user" and found > 0 and message["content"]:
            places.append(found)
        at = max(at, found)
    points = {n_common(_encode(served, prompt.text[:place]), ids) for place in {*places[:1], *places[-1:]}}
    return ids, tuple(sorted(points - {0}))


def _encode(served: Served, text: str) -> list[int]:
    """A template writes the token that begins a text itself, or leaves it to the tokenizer: never two."""
    return served.tokenizer.encode(text, add_special=True, parse_special=True)


def format_grammar(served: Served, body: ChatCompletion) -> Any:
    """What `response_format` allows, or None. 400 together with another grammar."""
    schema = _format_schema(body.response_format)
    if schema is None:
        return None
    if body.grammar:
        raise bad_request("response_format and grammar exclude each other")
    return served.grammars.from_json_schema(schema)


def _format_schema(wanted: ResponseFormat | None) -> dict[str, Any] | bool | None:
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return {"type": "object"} if wanted.schema_ is None else wanted.schema_
    if wanted.type == "json_schema":
        schema = (wanted.json_schema or {}).get("schema", wanted.schema_)
        if not isinstance(schema, dict | bool):
            raise bad_request("response_format.json_schema.schema must be a JSON schema")
        return schema
    raise bad_request(
        f'response_format type must be one of "text", "json_object" or "json_schema", but got: {wanted.type[:80]}'
    )
