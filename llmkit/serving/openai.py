"""OpenAI's answers: /v1/completions and /v1/chat/completions, whole and as a stream.

Owns their form, with llama.cpp's additions (`timings`, ids and bytes among the log-probabilities).
"""

from __future__ import annotations

import secrets
import string
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

from llmkit import __version__
from llmkit.engine.generation.logprobs import Logprobs
from llmkit.engine.scheduling.requests import CompletionRequest, Event, Finished, TokenEvent
from llmkit.errors import LlmkitError
from llmkit.serving.calls import Answer, Call
from llmkit.serving.completion import Look
from llmkit.serving.errors import api_error
from llmkit.serving.results import note, probabilities, timings_json, usage_json
from llmkit.serving.served import Served
from llmkit.serving.sse import DONE, PING, event

FINGERPRINT = f"llmkit-{__version__}"
_LETTERS = string.ascii_letters + string.digits


def new_id() -> str:
    """Of an answer; llama.cpp gives this one to both kinds."""
    return "chatcmpl-" + "".join(secrets.choice(_LETTERS) for _ in range(32))


@dataclass(frozen=True)
class OpenAICall:
    """A call of one of the two routes. chat: which. notes: for the log, filled in at the end."""

    served: Served
    requests: Sequence[CompletionRequest]
    look: Look
    chat: bool
    notes: dict[str, object] = field(default_factory=dict)
    id: str = field(default_factory=new_id)
    created: int = field(default_factory=lambda: int(time.time()))

    def result(self, answers: list[Answer]) -> dict[str, Any]:
        """The answer when all is through."""
        first = answers[0].end
        assert first is not None
        return {
            "choices": [self._choice(answer) for answer in answers],
            **self._head("chat.completion" if self.chat else "text_completion"),
            "usage": self._usage(answers),
            "timings": timings_json(first.timings),
        }

    def _choice(self, answer: Answer) -> dict[str, Any]:
        text = self.look.prefill + self.look.echo + answer.text
        choice: dict[str, Any] = {"finish_reason": answer.finish_reason, "index": answer.which}
        logprobs = self._logprobs(answer.ids, answer.logprobs, len(self.look.echo))
        if self.chat:
            choice["message"] = {"role": "assistant", "content": text}
            return {**choice, "logprobs": logprobs} if logprobs else choice
        return {"text": text, **choice, "logprobs": logprobs}

    def _logprobs(self, ids: Sequence[int], logprobs: Sequence[Logprobs], offset: int = 0) -> dict[str, Any] | None:
        if self.look.n_probs is None:
            return None
        after = self.requests[0].params.after_sampling
        content = probabilities(self.served.tokenizer, ids, logprobs, after_sampling=after)
        return {"content": content} if self.chat or after else {"content": content, **_old_logprobs(content, offset)}

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "created": self.created,
            "id": self.id,
            "model": self.served.name,
            "system_fingerprint": FINGERPRINT,
            "object": kind,
        }

    def _usage(self, answers: list[Answer]) -> dict[str, Any]:
        return usage_json(answers, [len(request.prompt_ids) for request in self.requests])

    async def stream(self, call: Call) -> AsyncGenerator[bytes, None]:
        """Chunks, the usage if it is asked for, and `[DONE]`."""
        held = [_Held(len(self.look.echo)) for _ in call.answers]
        if self.chat:
            yield b"".join(self._opening(answer) for answer in call.answers)
        try:
            async for batch in call.batches(self.look.ping_s):
                parts = [part for answer, e in batch for part in self._chunks(held[answer.which], answer, e)]
                yield b"".join(parts) if batch else PING
        except LlmkitError as error:
            yield event(api_error(error).body(openai=True))
        else:
            yield (self._usage_chunk(call.answers) if self.look.include_usage else b"") + DONE
        note(self.notes, call.answers)

    def _opening(self, answer: Answer) -> bytes:
        first = self._chunk(answer, {"role": "assistant", "content": None})
        return first + self._chunk(answer, {"content": self.look.prefill}) if self.look.prefill else first

    def _chunks(self, held: _Held, answer: Answer, e: Event) -> list[bytes]:
        if isinstance(e, TokenEvent):
            held.add(e.text, e.id, e.logprobs)
            return [self._flush(held, answer)] if held.text else []
        if isinstance(e, Finished):
            held.text += e.tail
            first = [self._flush(held, answer)] if held.text or (held.ids and self.look.n_probs is not None) else []
            more = {} if self.look.include_usage else {"timings": timings_json(e.timings)}
            return [*first, self._chunk(answer, {}, finish_reason=answer.finish_reason, more=more)]
        return []

    def _flush(self, held: _Held, answer: Answer) -> bytes:
        text = self.look.echo + held.text if held.first and not self.chat else held.text
        logprobs = self._logprobs(held.ids, held.logprobs, held.offset)
        held.clear()
        return self._chunk(answer, {"content": text}, logprobs=logprobs)

    def _chunk(
        self,
        answer: Answer,
        delta: dict[str, Any],
        *,
        finish_reason: str | None = None,
        logprobs: dict[str, Any] | None = None,
        more: dict[str, Any] | None = None,
    ) -> bytes:
        choice: dict[str, Any] = {"finish_reason": finish_reason, "index": answer.which}
        if self.chat:
            choice["delta"] = delta
            if logprobs is not None:
                choice["logprobs"] = logprobs
        else:
            choice |= {"text": delta.get("content", ""), "logprobs": logprobs}
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return event({"choices": [choice], **self._head(kind), **(more or {})})

    def _usage_chunk(self, answers: list[Answer]) -> bytes:
        first = answers[0].end
        assert first is not None
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        more = {"usage": self._usage(answers), "timings": timings_json(first.timings)}
        return event({"choices": [], **self._head(kind), **more})


@dataclass
class _Held:
    """Tokens whose text is not shown yet. offset: characters that were."""

    offset: int = 0
    first: bool = True
    text: str = ""
    ids: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)

    def add(self, text: str, id: int, logprobs: Logprobs | None) -> None:
        """One more."""
        self.text += text
        self.ids.append(id)
        if logprobs is not None:
            self.logprobs.append(logprobs)

    def clear(self) -> None:
        """They were shown."""
        self.offset += len(self.text)
        self.first, self.text, self.ids, self.logprobs = False, "", [], []


def _old_logprobs(content: list[dict[str, Any]], offset: int) -> dict[str, Any]:
    """The form that OpenAI gave the log-probabilities of completions, beside llama.cpp's."""
    offsets = []
    for entry in content:
        offsets.append(offset)
        offset += len(entry["token"])
    return {
        "tokens": [entry["token"] for entry in content],
        "token_logprobs": [entry["logprob"] for entry in content],
        "top_logprobs": [{top["token"]: top["logprob"] for top in entry["top_logprobs"]} for entry in content],
        "text_offset": offsets,
    }
