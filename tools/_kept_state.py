"""States that a generation goes on from and leaves behind: --state, --save-state, --prompt-cache.

Owns when a file is read and written, what of a prompt need not be computed, and what is said about it. The files are
llmkit/engine/state/save_load.py's.
"""

import os
import time
from typing import TYPE_CHECKING

from llmkit import report
from llmkit.errors import ContextFullError, OutputError, UsageError
from llmkit.files.atomic import check_can_write

from ._state_options import StateOptions

if TYPE_CHECKING:
    from llmkit.engine.generation.generate import Generation
    from llmkit.memory.sequence import Sequence

    from ._engine import Engine


class KeptState:
    """The files of one run, whose prompt is in one sequence. `past`: tokens that were there before it."""

    def __init__(self, options: StateOptions, engine: "Engine", seq_id: int = 0) -> None:
        self._options, self._ctx, self._tokenizer, self._seq_id = options, engine.ctx, engine.tokenizer, seq_id
        self._saves_prompt = options.cache is not None and not options.cache_all and not options.cache_ro
        self._failed: OutputError | None = None
        self.past: list[int] = []
        for path in (options.save, None if options.cache_ro else options.cache):
            if path is not None:
                check_can_write(path)  # not after hours

    @property
    def _seq(self) -> "Sequence":
        return self._ctx.memory.sequence(self._seq_id)

    def load(self) -> None:
        """Puts what is to go on into the sequence; a prompt cache that is not there yet is no error."""
        path = self._options.state or self._options.cache
        if path is None:
            return
        if path == self._options.cache and not os.path.lexists(path):
            report.note(f"prompt cache: {path} is not there yet")
            return
        from llmkit.engine.state.save_load import load_state

        began = time.perf_counter()
        seq = self._seq
        info = load_state(self._ctx, path, seq if self._options.seq_id is None else {self._options.seq_id: seq})
        self.past = seq.tokens.tolist()
        how = "unpacked, which copies it" if info.compressed else "mapped"
        report.detail(f"state: {len(self.past)} tokens of {path}, {how}, {1e3 * (time.perf_counter() - began):.1f} ms")

    def ids(self, prompt: str | list[int]) -> list[int]:
        """The tokens to compute. Behind a state: those of the text alone, or without one the last once more.
        With a prompt cache: those behind what it shares with the prompt. Nothing is there: all.
        """
        if self._options.state is not None:
            ids = prompt if isinstance(prompt, list) else self._encode(prompt, begins=not self.past)
            if ids or not self.past:
                return ids
            from llmkit.engine.state.save_load import cut_last

            again = cut_last(self._ctx, self._seq)
            self.past = self.past[: len(self.past) - len(again)]
            return again
        ids = prompt if isinstance(prompt, list) else self._encode(prompt, begins=True)
        return self._behind_cache(ids) if self._options.cache is not None and ids else ids

    def _encode(self, text: str, *, begins: bool) -> list[int]:
        assert self._tokenizer is not None, "a text prompt needs a tokenizer, which open_engine made sure of"
        return self._tokenizer.encode(text, add_special=begins)

    def _behind_cache(self, ids: list[int]) -> list[int]:
        from llmkit.engine.common_prefix import n_common

        held, n = self.past, n_common(self.past, ids)
        self._saves_prompt &= n < len(ids)  # else it holds all of the prompt
        kept = min(n, len(ids) - 1)
        if kept < len(held) and not self._ctx.memory.seq_rm(self._seq_id, kept, -1):
            report.note("prompt cache: the window has left what is shared, so all is computed anew")
            self._ctx.memory.seq_rm(self._seq_id)
            kept = 0
        if held:
            report.note(f"prompt cache: {kept} of {len(ids)} tokens were computed before")
        self.past = ids[:kept]
        return ids[kept:]

    def prompt_done(self) -> None:
        """The sequence holds the prompt and nothing more. A disk that is full keeps nobody from the answer."""
        if self._saves_prompt and self._options.cache is not None:
            try:
                self._save(self._options.cache)
            except OutputError as error:
                self._failed = error

    def finish(self, generation: "Generation | None" = None, n_before: int | None = None) -> None:
        """At the end: the answer's last token, which nobody has computed yet, is, and what is to be saved is saved.

        n_before: tokens before the generation's prompt, where that is not the past. OutputError for what could not be
        saved, the prompt's state included.
        """
        self._save_answer(generation, len(self.past) if n_before is None else n_before)
        if self._failed is not None:
            raise self._failed

    def _save_answer(self, generation: "Generation | None", n_before: int) -> None:
        if not self._options.saves_answer:
            return
        if generation is not None and generation.ids:
            self._compute_last(generation, n_before)
        if self._options.cache_all and self._options.cache is not None:
            self._save(self._options.cache)
        if self._options.save is None:
            return
        if generation is not None and generation.stop_reason == "interrupted" and not generation.ids:
            # Who goes on from it would take the prompt for whole.
            report.note(f"interrupted within the prompt: {self._options.save} is not written")
        else:
            self._save(self._options.save, compress=self._options.compress)

    def _compute_last(self, generation: "Generation", n_before: int) -> None:
        from llmkit.engine.batch import Segment

        last = generation.ids[-1]
        wanted = n_before + len(generation.prompt_ids) + len(generation.ids)
        if last in generation.eog_ids or self._seq.n_tokens != wanted - 1:
            return
        try:
            self._ctx.decode([Segment(self._seq, [last], "none")])
        except ContextFullError:
            report.warning("the state lacks the last token of the text: the context is full")

    def _save(self, path: str, *, compress: bool = False) -> None:
        from llmkit.engine.state.save_load import save_state

        if not self._seq.n_tokens:
            report.warning(f"nothing was computed, so {path} is not written")
            return
        began = time.perf_counter()
        info = save_state(self._ctx, path, self._seq, compress=compress)
        seconds = time.perf_counter() - began
        report.note(f"saved {self._seq.n_tokens} tokens, {info.n_bytes / 1e6:.1f} MB, in {path} ({seconds:.2f} s)")


def check_parallel(options: StateOptions, n_parallel: int) -> None:
    """UsageError where several answers would have to go into one state."""
    if n_parallel > 1 and options.saves_answer:
        raise UsageError(
            "a state holds one answer, but -np asks for several", "Leave out --save-state and --prompt-cache-all."
        )


def check_lines(options: StateOptions) -> None:
    """UsageError for what has no meaning where many lines go on from one state."""
    if options.cache is not None or options.save is not None:
        option = "--prompt-cache" if options.cache is not None else "--save-state"
        raise UsageError(f"--batch-lines does not go with {option}", "Save a state first, and give it with --state.")


def check_conversation(options: StateOptions) -> None:
    """UsageError for what has no meaning where a prompt grows with every turn."""
    if options.cache is not None and not (options.cache_all or options.cache_ro):
        raise UsageError(
            "in a conversation --prompt-cache needs --prompt-cache-all or --prompt-cache-ro",
            "The first saves the conversation at its end, the second only reads.",
        )
