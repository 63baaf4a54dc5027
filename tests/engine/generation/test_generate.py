"""The generation loop: what it decodes, when it stops, what it measures."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from llmkit.engine.generation.generate import Generation, StopReason
from llmkit.engine.generation.sampler import Sampler
from llmkit.engine.generation.stop_strings import StopStrings
from llmkit.engine.generation.timings import Timings
from llmkit.errors import ContextFullError, NumericsError, UsageError
from llmkit.params import GenerateParams, SamplingParams
from tests.engine.fakes import FakeContext, counting

GREEDY = SamplingParams(temp=0)


@dataclass
class Letters:
    """A stream that spells token n as the n-th letter, but holds back token 4 as if it were half a character."""

    held: list[int] = field(default_factory=list)

    def push(self, token: int) -> str:
        self.held.append(token)
        return "" if token == 4 else self._take()

    def finish(self) -> str:
        return self._take()

    def _take(self) -> str:
        text = "".join("abcdefgh"[t] for t in self.held)
        self.held.clear()
        return text


def generation(ctx: FakeContext, prompt: list[int], n_predict: int = -1, **options: Any) -> Generation:
    params = GenerateParams(n_predict, options.pop("n_batch", 2048), options.pop("n_logprobs", None))
    sampler = Sampler(options.pop("sampling", GREEDY))
    return Generation(ctx, ctx.new_sequence(), prompt, sampler, params, stream=Letters(), **options)


def test_it_yields_the_tokens_and_their_text() -> None:
    ctx = FakeContext(counting())
    run = generation(ctx, [7, 0], n_predict=3)
    assert [(t.id, t.text, t.logprobs) for t in run] == [(1, "b", None), (2, "c", None), (3, "d", None)]
    assert (run.ids, run.stop_reason, run.tail) == ([1, 2, 3], StopReason.LIMIT, "")


def test_each_token_is_decoded_once_and_the_last_not_at_all() -> None:
    ctx = FakeContext(counting())
    list(generation(ctx, [7, 0], n_predict=3))
    assert ctx.calls == [([7, 0], "last"), ([1], "last"), ([2], "last")]


def test_one_token_means_one() -> None:
    """Case 21."""
    ctx = FakeContext(counting())
    run = generation(ctx, [1], n_predict=1, n_logprobs=3)
    (token,) = run
    assert token.logprobs is not None
    assert [len(token.logprobs.top), token.logprobs.top[0].id, token.id] == [3, 2, 2]
    assert len(ctx.calls) == 1


def test_zero_only_computes_the_prompt() -> None:
    """Case 21: the cache is filled, timings are there, no logits are asked for."""
    ctx = FakeContext(counting())
    run = generation(ctx, [1, 2, 3], n_predict=0)
    assert list(run) == []
    assert (run.stop_reason, run.seq.n_tokens, run.timings.prompt_n) == (StopReason.LIMIT, 3, 3)
    assert ctx.calls == [([1, 2, 3], "none")]
    assert run.timings.first_token_s is None


def test_the_end_token_stops_counts_and_has_no_text() -> None:
    run = generation(FakeContext(counting()), [1], eog_ids=frozenset({3}))
    assert [(t.id, t.text) for t in run] == [(2, "c"), (3, "")]
    assert (run.ids, run.stop_reason) == ([2, 3], StopReason.EOS)


def test_an_end_token_at_the_limit_is_an_end() -> None:
    run = generation(FakeContext(counting()), [1], n_predict=2, eog_ids=frozenset({3}))
    assert [t.id for t in run] == [2, 3]
    assert run.stop_reason is StopReason.EOS


@pytest.mark.parametrize(("n_prompt", "n_generated"), [(9, 2), (10, 1), (1, 10)])
def test_a_full_context_stops(n_prompt: int, n_generated: int) -> None:
    """The last token needs no cell: n_ctx - n_prompt + 1 can be generated (case 23: n_ctx - 1 and n_ctx)."""
    run = generation(FakeContext(counting(), n_ctx=10), [0] * n_prompt)
    assert len(list(run)) == n_generated
    assert (run.stop_reason, run.seq.n_tokens) == (StopReason.CONTEXT, 10)


def test_a_longer_prompt_is_refused_with_both_numbers_and_nothing_decoded() -> None:
    """Case 23: n_ctx + 1."""
    ctx = FakeContext(counting(), n_ctx=10)
    with pytest.raises(ContextFullError, match=r"11 tokens.*10"):
        generation(ctx, [0] * 11)
    assert ctx.calls == []


def test_a_sequence_that_holds_tokens_counts_too() -> None:
    ctx = FakeContext(counting(), n_ctx=10)
    seq = ctx.new_sequence()
    seq.tokens = [0] * 8
    with pytest.raises(ContextFullError, match="11"):
        Generation(ctx, seq, [1, 2, 3], Sampler(GREEDY))
    run = Generation(ctx, seq, [1, 2], Sampler(GREEDY))
    assert [t.id for t in run] == [3]


def test_cells_held_by_others_stop_it_too() -> None:
    ctx = FakeContext(counting())

    def full() -> None:
        if len(ctx.calls) == 3:
            raise ContextFullError("others hold the cells")

    ctx.on_decode = full
    run = generation(ctx, [0])
    assert [t.id for t in run] == [1, 2, 3]
    assert run.stop_reason is StopReason.CONTEXT


@pytest.mark.parametrize("n_batch", [1, 2, 3, 5, 6, 100])
def test_the_prompt_goes_in_chunks(n_batch: int) -> None:
    ctx = FakeContext(counting())
    prompt = [5, 4, 3, 2, 1]
    run = generation(ctx, prompt, n_predict=1, n_batch=n_batch)
    assert [t.id for t in run] == [2]
    chunks = [tokens for tokens, _ in ctx.calls]
    assert [t for chunk in chunks for t in chunk] == prompt
    assert [len(c) for c in chunks[:-1]] == [n_batch] * (len(chunks) - 1)
    assert [wanted for _, wanted in ctx.calls] == ["none"] * (len(chunks) - 1) + ["last"]


def test_an_interrupt_takes_effect_between_chunks() -> None:
    ctx = FakeContext(counting())
    run = generation(ctx, [1] * 10, n_batch=2, interrupted=lambda: len(ctx.calls) == 3)
    assert list(run) == []
    assert (run.stop_reason, run.seq.n_tokens, run.timings.prompt_n) == (StopReason.INTERRUPTED, 6, 6)


def test_an_interrupt_keeps_what_there_is() -> None:
    ctx = FakeContext(counting())
    run = generation(ctx, [1], interrupted=lambda: len(ctx.calls) == 3)
    assert [t.text for t in run] == ["c", "d", ""]
    assert (run.ids, run.stop_reason, run.tail) == ([2, 3, 4], StopReason.INTERRUPTED, "e")


def test_held_back_text_comes_at_the_end() -> None:
    run = generation(FakeContext(counting()), [3], n_predict=1)
    assert [t.text for t in run] == [""]
    assert run.tail == "e"


@pytest.mark.parametrize("n_predict", [-2, -(2**31)])
def test_other_negative_counts_are_refused_by_name(n_predict: int) -> None:
    with pytest.raises(UsageError, match="n_predict"):
        GenerateParams(n_predict)


def test_other_bad_counts_are_refused_by_name() -> None:
    with pytest.raises(UsageError, match="n_batch"):
        GenerateParams(n_batch=0)
    with pytest.raises(UsageError, match="logprobs"):
        GenerateParams(n_logprobs=-1)


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(UsageError, match="no token"):
        generation(FakeContext(counting()), [])


def test_nan_logits_end_it_with_a_named_error() -> None:
    """Case 64: it never loops on NaN."""
    ctx = FakeContext(lambda tokens: [np.nan] * 8)
    with pytest.raises(NumericsError):
        list(generation(ctx, [1]))


def test_logprobs_are_of_the_raw_distribution() -> None:
    """Case 19: neither the temperature nor a cut changes them."""
    results = []
    for sampling in (GREEDY, SamplingParams(temp=5, seed=1, top_k=2), SamplingParams(temp=0.1, min_p=1.0, seed=1)):
        ctx = FakeContext(lambda tokens: [0, 1, 2, 3, 4, 5, 6, 7])
        (token,) = generation(ctx, [1], n_predict=1, n_logprobs=8, sampling=sampling)
        assert token.logprobs is not None
        results.append(token.logprobs.top)
        assert token.logprobs.chosen in token.logprobs.top
    assert results[0] == results[1] == results[2]
    assert sum(np.exp(t.logprob) for t in results[0]) == pytest.approx(1)


def test_the_same_seed_gives_the_same_tokens_for_any_chunking() -> None:
    def text(seed: int, n_batch: int) -> list[int]:
        ctx = FakeContext(lambda tokens: np.sin(np.arange(8) * sum(tokens)))
        sampling = SamplingParams(seed=seed, temp=1.5)
        return [t.id for t in generation(ctx, [3, 1, 4, 1, 5], n_predict=30, n_batch=n_batch, sampling=sampling)]

    assert text(7, 1) == text(7, 3) == text(7, 100)
    assert text(7, 1) != text(8, 1)


def test_timings_count_the_phases() -> None:
    timings = Timings(load_s=1.0)
    run = generation(FakeContext(counting()), [1, 2, 3], n_predict=4, timings=timings)
    list(run)
    told = timings.to_json()
    assert (told["prompt_n"], told["decode_n"], told["load_ms"]) == (3, 3, 1000.0)
    assert timings.first_token_s is not None
    assert timings.first_token_s >= timings.prompt_s > 0
    assert timings.decode_per_second == pytest.approx(3 / timings.decode_s)
    assert [line.split()[0] for line in timings.lines()] == ["load", "kernels", "prompt", "decode", "first"]


def test_rates_of_nothing_are_none() -> None:
    told = Timings().to_json()
    assert [told[k] for k in ("prompt_per_second", "decode_per_second", "first_token_ms")] == [None] * 3


# Stop strings


def test_a_stop_string_ends_it_and_is_not_shown() -> None:
    ctx = FakeContext(counting())
    run = generation(ctx, [0], stops=StopStrings(["d"]))
    assert [t.text for t in run] == ["b", "c", ""]
    assert (run.ids, run.stop_reason, run.stopping_word, run.tail) == ([1, 2, 3], StopReason.WORD, "d", "")
    assert len(ctx.calls) == 3


def test_a_stop_string_over_several_tokens_is_held_back() -> None:
    run = generation(FakeContext(counting()), [0], stops=StopStrings(["cdx"]), n_predict=5)
    assert [t.text for t in run] == ["b", "", "", "", "cdef"]  # token 4, e, waits for the next one
    assert (run.stop_reason, run.stopping_word, run.tail) == (StopReason.LIMIT, None, "")


def test_a_reverse_prompt_is_shown() -> None:
    run = generation(FakeContext(counting()), [0], stops=StopStrings(kept=["cd"]))
    assert "".join(t.text for t in run) + run.tail == "bcd"
    assert run.stopping_word == "cd"


def test_what_was_held_comes_when_the_text_ends() -> None:
    for options in ({"eog_ids": frozenset({4})}, {"n_predict": 3}):
        run = generation(FakeContext(counting()), [0], stops=StopStrings(["cdefgh"]), **options)
        assert ["".join(t.text for t in run), run.tail, run.stopping_word] == ["b", "cd", None]


def test_a_stop_string_in_the_prompt_alone_does_nothing() -> None:
    """Case 27."""
    run = generation(FakeContext(counting()), [1, 2, 3], stops=StopStrings(["c", "d"]), n_predict=2)
    assert "".join(t.text for t in run) + run.tail == "ef"
    assert run.stop_reason is StopReason.LIMIT


def test_a_stop_string_at_the_limit_is_the_reason() -> None:
    run = generation(FakeContext(counting()), [0], stops=StopStrings(["c"]), n_predict=2)
    list(run)
    assert (run.stop_reason, run.stopping_word) == (StopReason.WORD, "c")


def test_a_stop_string_that_only_the_end_completes() -> None:
    run = generation(FakeContext(counting()), [2], stops=StopStrings(["e"]), n_predict=2)
    assert "".join(t.text for t in run) + run.tail == "d"
    assert (run.stop_reason, run.stopping_word) == (StopReason.WORD, "e")


def test_a_control_token_can_stand_for_a_stop_string() -> None:
    run = generation(FakeContext(counting()), [0], stop_ids={3: "<|end|>"}, stops=StopStrings(["<|end|>", "cx"]))
    assert "".join(t.text for t in run) + run.tail == "bc"
    assert (run.ids, run.stop_reason, run.stopping_word) == ([1, 2, 3], StopReason.WORD, "<|end|>")


def test_the_prompt_counts_for_penalties() -> None:
    """llama.cpp takes note of it too."""
    logits = [5, 4.9, 0, 0, 0, 0, 0, 0]
    for prompt, expected in (([0], 1), ([1], 0), ([2], 0)):
        sampling = SamplingParams(temp=0, presence_penalty=1.0)
        (token,) = generation(FakeContext(lambda tokens: logits), prompt, n_predict=1, sampling=sampling)
        assert token.id == expected
