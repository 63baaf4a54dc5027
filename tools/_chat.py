"""Conversations: `llmkit run` with the model's chat template.

Owns the turns: read a message, answer it, show the answer, and what goes wrong meanwhile. What a message may be besides
a message is in _chat_commands.py, where it comes from in _chat_input.py, how its prompt is computed in
llmkit/engine/generation/conversation.py.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from llmkit import report
from llmkit.errors import LlmkitError
from llmkit.params import GenerateParams
from llmkit.shell import signals

from ._chat_input import History, PipedLines, Reader, Terminal, history_path
from ._chat_options import ChatOptions, at_terminal
from ._engine import Engine, open_engine
from ._prompt import plain_text, read_prompt

if TYPE_CHECKING:
    from llmkit.engine.generation.conversation import Conversation, Prompt
    from llmkit.engine.generation.generate import Generation
    from llmkit.engine.generation.timings import Timings

    from .run import Request

EXIT_INTERRUPTED = 130

MakeGeneration = Callable[[list[int], GenerateParams, "Timings"], "Generation"]
"""Gives what continues the conversation's sequence by these ids, in this way, counting there."""


@dataclass(frozen=True)
class Answer:
    """What an answer came of and how it ended."""

    prompt: "Prompt"
    generation: "Generation"
    text: str

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended it."""
        return self.generation.stop_reason == "interrupted"

    def timings_json(self) -> dict[str, Any]:
        """The timings, with the tokens of the prompt that were there already (`cache_n`, as in llama.cpp)."""
        return {"cache_n": self.prompt.n_cached} | self.generation.timings.to_json()


class Chat:
    """A conversation as it goes on, of one turn if `single`. typed: a person sits at the terminal. make: gives the
    generation that continues the conversation's sequence by ids. prefill: how the next answer begins.
    """

    def __init__(
        self,
        conversation: "Conversation",
        model_name: str,
        request: "Request",
        make: MakeGeneration,
        reader: Reader,
        prefill: str,
        *,
        typed: bool,
        single: bool,
    ) -> None:
        self.conversation, self.reader, self.typed, self.single = conversation, reader, typed, single
        self.prefill = prefill
        self.last: Answer | None = None
        self._model_name, self._request, self._make = model_name, request, make
        self._n_drawn = 0
        self._timings: Timings | None = None

    def first_timings(self, timings: "Timings") -> None:
        """Those that hold what opening the model took: the first answer's."""
        self._timings = timings

    def say(self, text: str) -> Answer | None:
        """Adds a message and answers it; None, and the message is taken back, if that fails or is stopped before the
        answer begins.
        """
        self.conversation.messages.append({"role": "user", "content": text})
        try:
            answer = self.answer()
        except BaseException:
            self.conversation.drop_turn()
            raise
        if answer is None:
            self.conversation.drop_turn()
            report.note("stopped before the answer began: the message was taken back")
        return answer

    def again(self) -> Answer | None:
        """Answers the last message anew; None, and all is as before, if that is stopped before the answer begins."""
        before = list(self.conversation.messages)
        self.conversation.drop_answer()
        answer = None
        try:
            answer = self.answer()
        finally:
            if answer is None:
                self.conversation.messages[:] = before
        return answer

    def answer(self) -> Answer | None:
        """Answers the messages as they stand, showing the text as it grows."""
        from llmkit.engine.generation.timings import Timings

        prefill = self.prefill
        timings = self._timings or Timings()
        prompt = self.conversation.prompt(prefill)
        report.detail(f"prompt: {len(prompt.ids)} tokens, {prompt.n_cached} of them cached")
        new_ids = prompt.new_ids
        if self.conversation.needs_points and len(new_ids) > 1:
            if not self._compute(new_ids[:-1], timings):
                return None
            self.conversation.keep_point()
            new_ids = new_ids[-1:]
        generation = self._make(new_ids, self._params(self._request.n_predict), timings)
        generation.sampler.accept(prompt.ids[: -len(new_ids)])
        generation.sampler.n_drawn = self._n_drawn
        text = self._generate(generation, prefill)
        self._n_drawn, self._timings, self.prefill = generation.sampler.n_drawn, None, ""
        answer = Answer(prompt, generation, prefill + text)
        if answer.interrupted and not generation.ids:
            return None
        self.conversation.add_answer(generation, text, prefill)
        self.last = answer
        self._tell(answer)
        return answer

    def _params(self, n_predict: int) -> GenerateParams:
        context = self._request.context
        return GenerateParams(n_predict, min(context.n_batch, context.n_ubatch))

    def _compute(self, ids: list[int], timings: "Timings") -> bool:
        """Computes a part of the prompt; False if Ctrl-C came."""
        from ._interrupt import Interruption

        part = self._make(ids, self._params(0), timings)
        with Interruption() as interruption:
            part.interrupted = interruption
            assert not list(part), "nothing is generated"
        return part.stop_reason != "interrupted"

    def _generate(self, generation: "Generation", prefill: str) -> str:
        """The text; a second Ctrl-C does not wait for the step that is being computed."""
        from llmkit.engine.generation.generate import StopReason

        from ._interrupt import Interruption

        parts: list[str] = []
        show = (lambda piece: None) if self._request.as_json else report.stream
        try:
            with Interruption() as interruption:
                generation.interrupted = interruption
                show(prefill)
                for token in generation:
                    show(token.text)
                    parts.append(token.text)
                parts.append(generation.tail)
                show(generation.tail)
        except KeyboardInterrupt:
            generation.stop_reason = StopReason.INTERRUPTED
        return "".join(parts)

    def _tell(self, answer: Answer) -> None:
        """What comes when an answer has ended: its line's end, the JSON, why it ended early, timings."""
        generation = answer.generation
        if self._request.as_json:
            report.result_json(self._json(answer))
        elif self.typed or not self.single:
            report.stream("" if answer.text.endswith("\n") else "\n")
        report.detail(f"stop: {generation.stop_reason}")
        if generation.stop_reason == "context":
            report.note(
                f"the context of {self.conversation.n_ctx} tokens is full: the answer ends here; "
                + ("/undo or /clear makes room, " if self.typed and not self.single else "")
                + "-c N gives more"
            )
        for line in generation.timings.lines():
            (report.note if self.single else report.detail)(line)

    def _json(self, answer: Answer) -> dict[str, Any]:
        generation = answer.generation
        return {
            "model": self._model_name,
            "prompt_ids": answer.prompt.ids,
            "ids": generation.ids,
            "text": answer.text,
            "stop_reason": generation.stop_reason,
            "stopping_word": generation.stopping_word,
            "timings": answer.timings_json(),
        }


def run_chat(request: "Request", chat: ChatOptions, make: Callable[[Engine], MakeGeneration]) -> int:
    """Converses until there is no more message; the exit code: 0, or 130 if interrupted."""
    from llmkit.engine.generation.timings import Timings

    system, first = chat.system_prompt(escape=request.escape), _first_message(request, chat)
    prefill = plain_text(chat.prefill or "", "--prefill", escape=request.escape)
    typed = at_terminal() and not request.as_json
    timings = Timings()
    from llmkit.engine.generation.points import N_POINTS

    context = replace(request.context, n_seq_max=1 + N_POINTS, kv_unified=True)
    with open_engine(request.model, context, timings, needs_text=True, overrides=request.overrides) as engine:
        from llmkit.engine.generation.conversation import Conversation

        from ._chat_template import template_of

        assert engine.tokenizer is not None, "open_engine made sure of it"
        request.sampling.check_ids(engine.model.config.n_vocab)
        template = template_of(engine.model.gguf, chat)
        report.detail(f"chat template: {template.name}")
        conversation = Conversation(
            engine.ctx.memory, engine.tokenizer, template, n_ctx=engine.ctx.n_ctx, options=chat.kwargs
        )
        if system is not None:
            conversation.messages.append({"role": "system", "content": system})
        from ._kept_state import KeptState

        kept = KeptState(request.kept, engine)
        kept.load()
        timings.kernels_s += engine.ctx.warm_up()
        talk = Chat(
            conversation, engine.model.name, request, make(engine), _reader(chat, typed), prefill,
            typed=typed, single=chat.single_turn,
        )  # fmt: skip
        talk.first_timings(timings)
        if typed and not chat.single_turn:
            report.note(f"{engine.model.name}: /help lists commands, Ctrl-C stops an answer, Ctrl-D ends")
        if first is not None and typed and request.display_prompt and not chat.single_turn:
            report.stream(f"> {first}\n")
        try:
            return _talk(talk, first)
        finally:
            if talk.last:
                kept.finish(talk.last.generation, talk.last.prompt.n_cached)
            else:
                kept.finish()


def _first_message(request: "Request", chat: ChatOptions) -> str | None:
    """The message of -p or -f; for a single turn also what is piped in, as a whole."""
    if request.prompt is None and request.file is None and not chat.single_turn:
        return None
    if chat.single_turn and request.prompt is None and request.file is None and at_terminal():
        return None
    return read_prompt(request.prompt, request.file, escape=request.escape)


def _reader(chat: ChatOptions, typed: bool) -> Reader:
    if typed:
        return Terminal(chat.multiline, History(history_path()) if chat.history else None)
    return PipedLines(chat.multiline)


def _talk(talk: Chat, text: str | None) -> int:
    """Message after message, beginning with `text`; the exit code."""
    from ._chat_commands import run_command

    n_breaks, is_given = 0, text is not None
    while True:
        try:
            if signals.is_ending():
                return EXIT_INTERRUPTED
            text = text if is_given else talk.reader.read()
            n_breaks = 0
            if text is None:
                return 0
            if talk.typed and not is_given and text.startswith("/"):
                if not run_command(talk, text):
                    return 0
            elif text.strip() or is_given:
                answer = talk.say(text)
                stopped = answer is None or answer.interrupted
                if talk.single or (stopped and not talk.typed):
                    return EXIT_INTERRUPTED if stopped else 0
        except KeyboardInterrupt:
            n_breaks += 1
            report.stream("\n" if talk.typed else "")
            if not talk.typed or n_breaks > 1 or signals.is_ending():
                raise
            report.note("Ctrl-C once more ends the conversation")
        except LlmkitError as error:
            if not talk.typed or talk.single:
                raise
            report.error(error.message, error.hint)
        is_given = False
