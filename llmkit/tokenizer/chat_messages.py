"""Messages of a conversation: what is no message, and what is done to those that a template cannot take as they are.

Owns no template; chat_template.py decides which of this is needed.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from llmkit.errors import ChatTemplateError

Message = dict[str, Any]

_TAG = "CONTINUE_FINAL_MESSAGE_TAG "
"""What transformers puts behind a message that is to be continued, to find its end in the text."""

_REASONING = ("reasoning_content", "thinking", "reasoning")


def checked_messages(value: object) -> list[Message]:
    """Messages out of JSON: a list of them, or an object with the list under `messages`, as chat APIs take it.

    ValueError says what is wrong.
    """
    listed = value.get("messages") if isinstance(value, dict) else value
    if not isinstance(listed, list):
        raise ValueError('neither a list of messages nor an object with "messages"')
    for i, message in enumerate(listed):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ValueError(f"message {i} has no role")
        if not isinstance(message.get("content"), str | list | None):
            raise ValueError(f"message {i} has a content that is neither a text nor a list of parts")
    return listed


def plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Copies without what is null, the reasoning under each of its names: as transformers gives them to templates."""
    plain = []
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ChatTemplateError(
                "a message has no role", 'A message is an object such as {"role": "user", "content": "..."}.'
            )
        copy = {key: value for key, value in message.items() if value is not None}
        reasoning = next((copy[key] for key in _REASONING if key in copy), None)
        if reasoning is not None:
            copy = {"thinking": reasoning, **copy, "reasoning_content": reasoning}
        plain.append(copy)
    return plain


def flat(message: Message) -> Message:
    """With its parts joined to one text, for a template that knows no parts. Pictures and the like are refused."""
    parts = message.get("content")
    if not isinstance(parts, list):
        return message
    texts = []
    for part in parts:
        if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise ChatTemplateError(f"a message holds a part of the type {kind!r}, but this model reads text only")
        texts.append(part["text"])
    return {**message, "content": "\n".join(texts)}


def with_content(message: Message) -> Message:
    """With an empty text if it has none."""
    return {"content": "", **message}


def with_arguments(message: Message, kind: str) -> Message:
    """With the arguments of its tool calls as a template takes them: an `object`, JSON `text`, or as they are (`any`).

    OpenAI's clients send text; most templates want an object, which they write as JSON themselves.
    """
    calls = message.get("tool_calls")
    if kind == "any" or not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [_call_with_arguments(call, kind) for call in calls]}


def _call_with_arguments(call: Any, kind: str) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if kind == "object" and isinstance(arguments, str):
        try:
            value = json.loads(arguments)
        except (ValueError, RecursionError):
            return call
        arguments = value if isinstance(value, dict) else arguments
    elif kind == "text" and isinstance(arguments, dict):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return call if function is None else {**call, "function": {**function, "arguments": arguments}}


def without_system(messages: list[Message]) -> list[Message]:
    """With each system prompt in front of the user's message that comes next, or as one if none comes."""
    merged: list[Message] = []
    pending: list[str] = []
    for message in messages:
        if message["role"] == "system":
            pending.append(flat(message).get("content", ""))
            continue
        if pending and message["role"] == "user":
            merged.append(_with_text_before(message, "\n".join(pending)))
            pending = []
            continue
        merged.append(message)
    return [*merged, {"role": "user", "content": "\n".join(pending)}] if pending else merged


def _with_text_before(message: Message, text: str) -> Message:
    content = message.get("content", "")
    if isinstance(content, list):
        return {**message, "content": [{"type": "text", "text": text}, *content]}
    return {**message, "content": f"{text}\n{content}" if content else text}


def mark_end(messages: list[Message]) -> str:
    """Marks the end of the last message's text, which is returned."""
    content = messages[-1].get("content") if messages else None
    if isinstance(content, str):
        messages[-1]["content"] = content + _TAG
        return content
    if isinstance(content, list):
        texts = [i for i, part in enumerate(content) if isinstance(part, dict) and isinstance(part.get("text"), str)]
        if texts:
            parts = list(content)
            parts[texts[-1]] = {**parts[texts[-1]], "text": parts[texts[-1]]["text"] + _TAG}
            messages[-1]["content"] = parts
            return str(content[texts[-1]]["text"])
    raise ChatTemplateError("the last message holds no text that could be continued")


def cut_at_mark(text: str, wanted: str) -> str:
    """The text up to the mark; what the template trims is trimmed."""
    place = text.rfind(_TAG.strip())
    if place < 0 or wanted.strip() not in text:
        raise ChatTemplateError(
            "the template leaves out a part of the message that is to be continued",
            "Give another template, or leave it out.",
        )
    kept = text[:place]
    return kept if text.startswith(_TAG, place) else kept.rstrip()
