"""A conversation in one sequence: what was computed for earlier turns is used again.

Owns the messages, the tokens that they became, and how much of the sequence a new prompt can keep. An answer's tokens
stay those that the model chose, where encoding its text anew might give others. Knows nothing of terminals, of
sampling, or of how a template is written.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from llmkit.engine.common_prefix import n_common
from llmkit.engine.generation.generate import DecodedSequence, Generation
from llmkit.engine.generation.points import Points, SequenceMemory
from llmkit.errors import ChatTemplateError, ContextFullError

Message = dict[str, Any]


class Template(Protocol):
    """What a conversation needs of a chat template: see llmkit/tokenizer/chat_template.py."""

    def render(
        self, messages: list[Message], *, add_generation_prompt: bool = True, continue_final_message: bool = False,
        **kwargs: Any,
    ) -> str: ...  # fmt: skip


class Spelling(Protocol):
    """What it needs of a tokenizer."""

    @property
    def eog_ids(self) -> frozenset[int]: ...

    def encode(self, text: str, add_special: bool = True, parse_special: bool = True) -> list[int]: ...

    def piece_bytes(self, id: int, special: bool = False) -> bytes: ...


@dataclass(frozen=True)
class Prompt:
    """The rendered messages, their tokens, and how many of the first ones the sequence holds already."""

    text: str
    ids: list[int]
    n_cached: int

    @property
    def new_ids(self) -> list[int]:
        """Those that are to be computed: at least one."""
        return self.ids[self.n_cached :]


@dataclass(frozen=True)
class _Boundary:
    """A place in the known text at which its tokens can be cut: nothing was merged across it."""

    n_characters: int
    n_ids: int


class Conversation:
    """Messages, and the sequence `seq_id` of a context, which holds the tokens of some of them.

    options: what the template is given besides the messages. For each turn: change `messages`, take `prompt()`,
    generate from its `new_ids` in `seq`, and give the result to `add_answer`.
    """

    def __init__(
        self,
        memory: SequenceMemory,
        tokenizer: Spelling,
        template: Template,
        *,
        n_ctx: int,
        options: Mapping[str, Any] | None = None,
        seq_id: int = 0,
    ) -> None:
        self.messages: list[Message] = []
        self._memory, self._tokenizer, self._template = memory, tokenizer, template
        self._n_ctx, self._options, self._seq_id = n_ctx, dict(options or {}), seq_id
        self._points = Points(memory, seq_id)
        self._text, self._ids = "", list[int]()
        self._boundaries: list[_Boundary] = []

    @property
    def seq(self) -> DecodedSequence:
        """The sequence in which answers are generated."""
        sequence: DecodedSequence = self._memory.sequence(self._seq_id)
        return sequence

    @property
    def n_ctx(self) -> int:
        """Tokens that the sequence may hold."""
        return self._n_ctx

    def prompt(self, prefill: str = "") -> Prompt:
        """What is to be computed for the next answer, which begins with `prefill`. Cuts the sequence back to what it
        shares with that; where a window has forgotten what would be needed then, to a point that was kept.

        ChatTemplateError if the template refuses the messages; ContextFullError, and nothing is cut, if they are too
        long for the context.
        """
        messages = [*self.messages, {"role": "assistant", "content": prefill}] if prefill else self.messages
        text = self._template.render(
            messages, add_generation_prompt=not prefill, continue_final_message=bool(prefill), **self._options
        )
        ids, kept = self._encode(text)
        if not ids:
            raise ChatTemplateError("the chat template makes an empty text of the messages")
        if len(ids) > self._n_ctx:
            raise ContextFullError(
                f"the conversation has {len(ids)} tokens with this message, but the context holds {self._n_ctx}",
                "Begin anew, take turns back, or give a larger context with -c.",
            )
        n_cached = self._points.cut_back(ids)
        self._text, self._ids = text, ids
        self._boundaries = [*kept, _Boundary(len(text), len(ids))]
        return Prompt(text, ids, n_cached)

    @property
    def needs_points(self) -> bool:
        """Whether `keep_point` is of use: in memory with windows."""
        return self._points.are_needed

    def keep_point(self) -> None:
        """The sequence holds a prompt but its last token: what it can go back to where a window forgets."""
        self._points.keep()

    def add_answer(self, generation: Generation, text: str, prefill: str = "") -> None:
        """Adds the answer that came of the last prompt as the assistant's message: `prefill` and the text generated."""
        self.messages.append({"role": "assistant", "content": prefill + text})
        ids = [id for id in generation.ids if id not in self._tokenizer.eog_ids]
        pieces = [self._tokenizer.piece_bytes(id) for id in ids]
        if all(pieces) and b"".join(pieces).decode("utf-8", "replace") == text:  # else a stop text was cut off
            self._text += text
            self._ids = [*self._ids, *ids]
            self._boundaries.append(_Boundary(len(self._text), len(self._ids)))

    def drop_answer(self) -> bool:
        """Takes back what came after the last message that is not the assistant's; False if nothing did."""
        n = len(self.messages)
        while self.messages and self.messages[-1]["role"] == "assistant":
            self.messages.pop()
        return len(self.messages) < n

    def drop_turn(self) -> bool:
        """Takes back the user's last message and all after it; False if there is none."""
        asked = [i for i, message in enumerate(self.messages) if message["role"] == "user"]
        if asked:
            del self.messages[asked[-1] :]
        return bool(asked)

    def clear(self) -> None:
        """Begins anew, with the system prompt that it began with."""
        self.messages = [message for message in self.messages[:1] if message["role"] == "system"]

    # -- tokens -------------------------------------------------------------------------------------------------------

    def _encode(self, text: str) -> tuple[list[int], list[_Boundary]]:
        """The text's tokens, with the known ones as far as it is the known text; and the boundaries that remain."""
        n_same = n_common(text, self._text)
        kept = [boundary for boundary in self._boundaries if boundary.n_characters <= n_same]
        while kept:
            rest = self._tokenizer.encode(text[kept[-1].n_characters :], add_special=False)
            if self._joins(rest) or kept[-1].n_characters == len(text):
                return self._ids[: kept[-1].n_ids] + rest, kept
            kept.pop()
        return self._tokenizer.encode(text), []

    def _joins(self, rest: list[int]) -> bool:
        """Whether tokens encoded apart are what they are in the whole text: for sure where a special token begins."""
        return bool(rest) and not self._tokenizer.piece_bytes(rest[0])
