"""llama.cpp's own routes for completing: /completion, /completions, /infill.

Owns their answers, whole and as a stream. What a body means is completion.py's.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

from llmkit.engine.generation.generate import StopReason
from llmkit.engine.generation.logprobs import Logprobs
from llmkit.engine.scheduling.requests import CompletionRequest, Event, Finished, Progress, RequestTimings, TokenEvent
from llmkit.errors import LlmkitError
from llmkit.serving.calls import Answer, Call
from llmkit.serving.completion import Look, generation_settings
from llmkit.serving.errors import api_error
from llmkit.serving.results import note, probabilities, timings_json
from llmkit.serving.served import Served
from llmkit.serving.sse import PING, event


@dataclass(frozen=True)
class NativeCall:
    """A call of a native route. grammar: its text, to be shown again. notes: for the log, filled in at the end."""

    served: Served
    requests: Sequence[CompletionRequest]
    look: Look
    grammar: str = ""
    notes: dict[str, object] = field(default_factory=dict)

    def request_of(self, answer: Answer) -> CompletionRequest:
        """Which prompt an answer goes on from."""
        n_seen = 0
        for request in self.requests:
            n_seen += request.n_cmpl
            if answer.which < n_seen:
                return request
        raise AssertionError("an answer without a request")

    def result(self, answer: Answer) -> Any:
        """The answer when it is through."""
        whole = self._last(answer, answer.text, answer.ids if self.look.return_tokens else [])
        if self.look.n_probs:
            whole["completion_probabilities"] = self._probabilities(answer.ids, answer.logprobs)
        return chosen_fields(whole, self.look.response_fields)

    def _probabilities(self, ids: Sequence[int], logprobs: Sequence[Logprobs]) -> list[dict[str, Any]]:
        after = self.requests[0].params.after_sampling
        return probabilities(self.served.tokenizer, ids, logprobs, after_sampling=after)

    def _last(self, answer: Answer, content: str, ids: Sequence[int]) -> dict[str, Any]:
        end, request = answer.end, self.request_of(answer)
        assert end is not None
        settings = generation_settings(request, self.look, self.grammar)
        return {
            "index": answer.which,
            "content": content,
            "tokens": list(ids),
            "id_slot": end.id_slot,
            "stop": True,
            "model": self.served.name,
            "tokens_predicted": len(answer.ids),
            "tokens_evaluated": len(request.prompt_ids),
            "generation_settings": {**settings, "seed": end.seed},
            "prompt": self.served.tokenizer.decode(request.prompt_ids, special=True),
            "has_new_line": "\n" in answer.text,
            "truncated": end.truncated or end.stop_reason is StopReason.CONTEXT,
            "stop_type": answer.stop_type,
            "stopping_word": end.stopping_word or "",
            "tokens_cached": end.n_past,
            "timings": timings_json(end.timings),
        }

    async def stream(self, call: Call) -> AsyncGenerator[bytes, None]:
        """A chunk for each piece of text, and a last one with all the rest."""
        held = [_Held() for _ in call.answers]
        try:
            async for batch in call.batches(self.look.ping_s):
                parts = [part for answer, e in batch for part in self._chunks(held[answer.which], answer, e)]
                yield b"".join(parts) if batch else PING
        except LlmkitError as error:
            yield event(api_error(error).body())
        note(self.notes, call.answers)

    def _chunks(self, held: _Held, answer: Answer, e: Event) -> list[bytes]:
        """What to send for an event."""
        if isinstance(e, Progress) and self.look.return_progress:
            return [event({**self._chunk(answer, "", [], _of_progress(e)), "prompt_progress": _progress_json(e)})]
        if isinstance(e, TokenEvent):
            held.add(e)
            return [self._flush(held, answer, e.timings)] if held.text else []
        if isinstance(e, Finished):
            held.text += e.tail
            first = [self._flush(held, answer, e.timings)] if held.text or held.ids else []
            return [*first, event(chosen_fields(self._last(answer, "", []), self.look.response_fields))]
        return []

    def _flush(self, held: _Held, answer: Answer, timings: RequestTimings) -> bytes:
        chunk = self._chunk(answer, held.text, held.ids, timings)
        if self.look.n_probs:
            chunk["completion_probabilities"] = self._probabilities(held.ids, held.logprobs)
        held.clear()
        return event(chunk)

    def _chunk(self, answer: Answer, content: str, ids: list[int], timings: RequestTimings) -> dict[str, Any]:
        chunk = {
            "index": answer.which,
            "content": content,
            "tokens": list(ids),
            "stop": False,
            "id_slot": answer.id_slot,
            "tokens_predicted": timings.predicted_n,
            "tokens_evaluated": len(self.request_of(answer).prompt_ids),
        }
        if self.look.timings_per_token or (self.look.return_progress and not ids):
            chunk["timings"] = timings_json(timings)
        return chunk


@dataclass
class _Held:
    """Tokens whose text is not shown yet: a character is not complete, or a stop string may have begun."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)

    def add(self, e: TokenEvent) -> None:
        """One more."""
        self.text += e.text
        self.ids.append(e.id)
        if e.logprobs is not None:
            self.logprobs.append(e.logprobs)

    def clear(self) -> None:
        """They were shown."""
        self.text, self.ids, self.logprobs = "", [], []


def _of_progress(e: Progress) -> RequestTimings:
    return RequestTimings(cache_n=e.n_cached, prompt_n=e.n_done - e.n_cached, prompt_s=e.elapsed_s)


def _progress_json(e: Progress) -> dict[str, int]:
    return {"total": e.n_total, "cache": e.n_cached, "processed": e.n_done, "time_ms": round(e.elapsed_s * 1e3)}


def chosen_fields(whole: dict[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    """All fields, or those asked for by their paths: `timings/cache_n` is under that name."""
    if not fields:
        return whole
    found: dict[str, Any] = {}
    for path in fields:
        value: Any = whole
        for name in path.split("/"):
            value = value.get(name, _NONE) if isinstance(value, dict) else _NONE
        if value is not _NONE:
            found[path] = value
    return found


_NONE = object()
