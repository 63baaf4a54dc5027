"""Conversations: what is computed again and what is not, on a tiny model."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmkit.engine.batch import Segment
from llmkit.engine.context import Context
from llmkit.engine.generation.conversation import Conversation, Prompt
from llmkit.engine.generation.generate import Generation
from llmkit.engine.generation.points import N_POINTS
from llmkit.engine.generation.sampler import Sampler
from llmkit.errors import ChatTemplateError, ContextFullError
from llmkit.models.model import load_model
from llmkit.params import ContextParams, GenerateParams, SamplingParams
from llmkit.tokenizer import Tokenizer, load_tokenizer
from llmkit.tokenizer.chat_template import ChatTemplate
from llmkit.tokenizer.chat_template_names import BUILT_IN, FORMATS
from tests.engine_runs import assert_same_bits, need_engine, prefill
from tests.make_models import make_model

need_engine()

TRIMMING = replace(FORMATS["chatml"], trimmed=("assistant",)).to_jinja()
JOINED = "{{ messages | map(attribute='content') | join }}"
N_CTX = 512


class Talk:
    """A tiny model, its context, and a conversation."""

    def __init__(self, path: Path, template: str, n_ctx: int = N_CTX) -> None:
        self.model = load_model(path)
        self.ctx = Context(self.model, ContextParams(n_ctx=n_ctx, n_threads=1, n_seq_max=1 + N_POINTS))
        self.tokenizer: Tokenizer = load_tokenizer(self.model.gguf)
        self.template = ChatTemplate(template, bos_token="", eos_token="")
        self.conversation = Conversation(self.ctx.memory, self.tokenizer, self.template, n_ctx=self.ctx.n_ctx)

    def turn(self, text: str, n: int = 8, prefill: str = "") -> tuple[Prompt, Generation]:
        self.conversation.messages.append({"role": "user", "content": text})
        return self.answer(n, prefill)

    def answer(self, n: int = 8, prefill: str = "", seed: int = 1) -> tuple[Prompt, Generation]:
        prompt = self.conversation.prompt(prefill)
        sampler = Sampler(SamplingParams(seed=seed, temp=2.0, top_k=0, top_p=1.0, min_p=0.0))
        generation = Generation(
            self.ctx, self.conversation.seq, prompt.new_ids, sampler, GenerateParams(n), self.tokenizer.eog_ids,
            self.tokenizer.stream(),
        )  # fmt: skip
        text = "".join(token.text for token in generation) + generation.tail
        self.conversation.add_answer(generation, text, prefill)
        return prompt, generation

    def last_row(self, ids: list[int]) -> Any:
        """The logits after ids, computed by another context in one go."""
        with Context(self.model, ContextParams(n_ctx=N_CTX, n_threads=1)) as ctx:
            return prefill(ctx, ids, len(ids))[-1:]


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Talk]:
    made = Talk(make_model(tmp_path / "m.gguf", tokenizer="bpe", n_ctx_train=N_CTX), BUILT_IN["chatml"])
    yield made
    made.ctx.close()


def test_earlier_turns_are_not_computed_again(talk: Talk) -> None:
    first, answer = talk.turn("hello there")
    assert first.n_cached == 0
    second, _ = talk.turn("and then")
    # All that was decoded: the first prompt and the answer but its last token, which nothing has needed yet.
    n_decoded = len(first.ids) + len(answer.ids) - 1
    assert second.n_cached == n_decoded
    assert second.ids[: len(first.ids)] == first.ids
    assert second.ids[len(first.ids) :][: len(answer.ids)] == [i for i in answer.ids if i not in talk.tokenizer.eog_ids]


def test_reuse_changes_no_bit(talk: Talk) -> None:
    talk.turn("hello there")
    talk.turn("and then")
    prompt = talk.conversation
    prompt.messages.append({"role": "user", "content": "more of it"})
    asked = prompt.prompt()
    assert 0 < asked.n_cached < len(asked.ids)
    got = np.array(talk.ctx.decode([Segment(talk.ctx.memory.sequence(0), asked.new_ids, "last")]), np.float32)
    assert_same_bits(got, talk.last_row(asked.ids), "the logits after a reused conversation")


def test_the_model_s_own_tokens_are_kept(talk: Talk) -> None:
    """A model may write `the` as t, h, e: what it wrote stands, though encoding the text would give one token."""
    talk.conversation.messages.append({"role": "user", "content": "hi"})
    prompt = talk.conversation.prompt()
    letters = [talk.tokenizer.encode(c)[0] for c in "the"]
    assert talk.tokenizer.encode("the") != letters
    told = Told(letters)
    talk.conversation.add_answer(told, "the")  # type: ignore[arg-type]
    talk.conversation.messages.append({"role": "user", "content": "go on"})
    following = talk.conversation.prompt()
    assert following.ids[len(prompt.ids) :][:3] == letters
    assert talk.tokenizer.decode(following.ids, special=True) == following.text


class Told:
    """What a generation left behind."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids


def test_regenerating_computes_one_token(talk: Talk) -> None:
    prompt, _ = talk.turn("hello there")
    assert talk.conversation.drop_answer()
    again, _ = talk.answer(seed=2)
    assert again.ids == prompt.ids
    assert again.n_cached == len(prompt.ids) - 1


def test_a_turn_taken_back_leaves_what_was_before(talk: Talk) -> None:
    first, answer = talk.turn("hello there")
    talk.turn("and then")
    assert talk.conversation.drop_turn()
    assert len(talk.conversation.messages) == 2
    third, _ = talk.turn("no, something else")
    assert third.n_cached >= len(first.ids) + len(answer.ids) - 1
    assert third.text == talk.template.render(talk.conversation.messages[:-1])


def test_another_beginning_is_computed_anew(talk: Talk) -> None:
    talk.turn("hello there")
    talk.conversation.messages.insert(0, {"role": "system", "content": "brief"})
    prompt, _ = talk.turn("go on")
    assert prompt.n_cached == 1, "only <|im_start|> is the same"
    assert prompt.ids == talk.tokenizer.encode(prompt.text)


def test_an_answer_that_the_template_trims(tmp_path: Path) -> None:
    talk = Talk(make_model(tmp_path / "m.gguf", tokenizer="bpe", n_ctx_train=N_CTX), TRIMMING)
    with talk.ctx:
        talk.conversation.messages.append({"role": "user", "content": "hi"})
        talk.conversation.prompt()
        talk.conversation.add_answer(Told(talk.tokenizer.encode("  so")), "  so")  # type: ignore[arg-type]
        talk.conversation.messages.append({"role": "user", "content": "go on"})
        prompt = talk.conversation.prompt()
        assert prompt.ids == talk.tokenizer.encode(prompt.text)
        assert "assistant\nso<" in prompt.text


def test_tokens_without_a_text_are_not_kept(talk: Talk) -> None:
    talk.conversation.messages.append({"role": "user", "content": "hi"})
    talk.conversation.prompt()
    hidden = talk.tokenizer.encode("<|im_start|>so", parse_special=True)
    talk.conversation.add_answer(Told(hidden), "so")  # type: ignore[arg-type]
    talk.conversation.messages.append({"role": "user", "content": "go on"})
    prompt = talk.conversation.prompt()
    assert prompt.ids == talk.tokenizer.encode(prompt.text)


def test_a_stop_text_that_was_cut_off_is_not_kept(talk: Talk) -> None:
    talk.conversation.messages.append({"role": "user", "content": "hi"})
    talk.conversation.prompt()
    talk.conversation.add_answer(Told(talk.tokenizer.encode("so END")), "so")  # type: ignore[arg-type]
    talk.conversation.messages.append({"role": "user", "content": "go on"})
    prompt = talk.conversation.prompt()
    assert prompt.ids == talk.tokenizer.encode(prompt.text)
    assert "END" not in prompt.text


def test_an_answer_begins_as_told(talk: Talk) -> None:
    prompt, _ = talk.turn("hello", prefill="Well,")
    assert prompt.text.endswith("<|im_start|>assistant\nWell,")
    assert talk.conversation.messages[-1]["content"].startswith("Well,")
    following, _ = talk.turn("go on")
    assert following.n_cached >= len(prompt.ids)


def windowed(path: Path, template: str = BUILT_IN["chatml"]) -> Talk:
    model = {"arch": "gemma3", "tokenizer": "bpe", "n_ctx_train": N_CTX, "window": 32, "window_pattern": (1, 0)}
    return Talk(make_model(path, **model), template)


def check_held(talk: Talk, prompt: Prompt) -> None:
    """The sequence holds the prompt, and computing on gives the bits of computing it all in one go."""
    seq = talk.ctx.memory.sequence(0)
    talk.ctx.decode([Segment(seq, prompt.new_ids[:-1], "none")])
    talk.conversation.keep_point()
    got = np.array(talk.ctx.decode([Segment(seq, prompt.ids[-1:], "last")]), np.float32)
    assert seq.tokens.tolist() == prompt.ids
    assert_same_bits(got, talk.last_row(prompt.ids), "the logits after going back")


def asked(talk: Talk, text: str) -> Prompt:
    talk.conversation.messages.append({"role": "user", "content": text})
    return talk.conversation.prompt()


def answered(talk: Talk, text: str) -> None:
    """As if the model had said so."""
    ids = talk.tokenizer.encode(text)
    talk.ctx.decode([Segment(talk.ctx.memory.sequence(0), ids, "none")])
    talk.conversation.add_answer(Told(ids), text)  # type: ignore[arg-type]


def test_a_window_that_has_forgotten_goes_back_to_a_point(tmp_path: Path) -> None:
    """An answer longer than the window, then another one, another message, and one more turn."""
    talk = windowed(tmp_path / "w.gguf")
    with talk.ctx:
        first = asked(talk, "one")
        check_held(talk, first)
        answered(talk, "a b c d e f g h " * 4)
        second = asked(talk, "two")
        check_held(talk, second)
        answered(talk, "h g f e d c b a " * 4)
        talk.conversation.drop_answer()
        again = talk.conversation.prompt()
        assert (again.ids, again.n_cached) == (second.ids, len(second.ids) - 1)
        check_held(talk, again)
        answered(talk, "i j k l m n o p " * 4)
        talk.conversation.drop_turn()
        third = asked(talk, "three")
        assert third.n_cached == len(first.ids) - 1, "the point of the turn that stays"
        check_held(talk, third)


def test_a_window_with_answers_that_are_trimmed(tmp_path: Path) -> None:
    """Each turn leaves the answer before it as it was computed: it goes back to the prompt before, not to the start."""
    talk = windowed(tmp_path / "w.gguf", TRIMMING)
    with talk.ctx:
        before = None
        for turn in range(6):
            prompt = asked(talk, f"number {turn}")
            assert prompt.n_cached == (len(before.ids) - 1 if before else 0)
            check_held(talk, prompt)
            answered(talk, " a b c d e f g h" * 4)
            before = prompt


def test_points_of_another_conversation_are_forgotten(tmp_path: Path) -> None:
    """Their cells are free then: as many are used as if there had never been one."""
    n_used = []
    for texts in (["other"], ["one", "two", "three", "other"]):
        talk = windowed(tmp_path / "w.gguf")
        with talk.ctx:
            for text in texts:
                talk.conversation.messages[:] = talk.conversation.messages if text != "other" else []
                check_held(talk, asked(talk, text))
                if text != "other":
                    answered(talk, "a b c d e f g h " * 6)
            n_used.append([pool.n_used for pool in talk.ctx.kv.pools])
    assert n_used[0] == n_used[1]


def test_points_leave_the_whole_context_to_a_conversation(tmp_path: Path) -> None:
    """However many points there are, all n_ctx tokens can be held."""
    talk = windowed(tmp_path / "w.gguf")
    with talk.ctx:
        for turn in range(12):
            prompt = asked(talk, f"{turn}")
            check_held(talk, prompt)
            answered(talk, "a b c ")
        seq = talk.ctx.memory.sequence(0)
        talk.ctx.decode([Segment(seq, [5] * (talk.ctx.n_ctx - seq.n_tokens), "none")])
        assert seq.n_tokens == talk.ctx.n_ctx


def test_a_message_that_does_not_fit_changes_nothing(talk: Talk) -> None:
    talk.turn("hello there")
    held = talk.ctx.memory.sequence(0).tokens.tolist()
    talk.conversation.messages.append({"role": "user", "content": "x1" * N_CTX})
    with pytest.raises(ContextFullError, match=f"context holds {N_CTX}"):
        talk.conversation.prompt()
    assert talk.ctx.memory.sequence(0).tokens.tolist() == held
    assert talk.conversation.drop_turn()
    prompt, _ = talk.turn("again")
    assert prompt.n_cached >= len(held)


def test_clear_keeps_the_system_prompt(talk: Talk) -> None:
    talk.conversation.messages.append({"role": "system", "content": "brief"})
    talk.turn("hello")
    talk.conversation.clear()
    assert talk.conversation.messages == [{"role": "system", "content": "brief"}]
    assert not talk.conversation.drop_turn()
    assert not talk.conversation.drop_answer()


def test_a_template_that_makes_nothing(talk: Talk) -> None:
    empty = Conversation(
        talk.ctx.memory, talk.tokenizer, ChatTemplate("", bos_token="", eos_token=""), n_ctx=talk.ctx.n_ctx
    )
    with pytest.raises(ChatTemplateError, match="empty text"):
        empty.prompt()


def test_what_begins_with_a_word_is_not_encoded_apart(tmp_path: Path) -> None:
    """SPM puts a space before a text: not before the rest of one. So what follows a known text is encoded with it."""
    talk = Talk(
        make_model(tmp_path / "m.gguf", tokenizer="spm", n_ctx_train=N_CTX),
        JOINED,
    )
    with talk.ctx:
        talk.conversation.messages.append({"role": "user", "content": "the sea"})
        first = talk.conversation.prompt()
        talk.conversation.messages.append({"role": "user", "content": "son"})
        prompt = talk.conversation.prompt()
        assert prompt.text == "the season"
        assert prompt.ids == talk.tokenizer.encode("the season")
        assert first.ids == talk.tokenizer.encode("the sea")


def test_another_text_of_the_same_length(talk: Talk) -> None:
    for text in ("one", "two"):
        talk.conversation.messages[:] = [{"role": "user", "content": text}]
        prompt = talk.conversation.prompt()
        assert prompt.ids == talk.tokenizer.encode(prompt.text)
