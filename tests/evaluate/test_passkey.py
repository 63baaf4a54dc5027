"""The passkey test: llama.cpp's number, place and prompt; what is removed and moved; what counts as found."""

from itertools import islice
from typing import Any

import numpy as np
import pytest

from llmkit.errors import UnsupportedError, UsageError
from llmkit.evaluate.passkey import PasskeyRun, PasskeySizes, PasskeyTask, choose_task, glibc_rand
from tests.engine.fake_memory import FakeMemory


def test_numbers_are_glibcs() -> None:
    """What a C program prints after srand(1) and srand(42)."""
    assert list(islice(glibc_rand(1), 5)) == [1804289383, 846930886, 1681692777, 1714636915, 1957747793]
    assert list(islice(glibc_rand(42), 3)) == [71876166, 708592740, 1483128881]
    assert next(glibc_rand(0)) == 1804289383


def test_key_and_place_are_llama_cpps() -> None:
    """What llama-passkey (b11434) said for --junk 7, and for --junk 20 --pos 5."""
    assert choose_task(7, -1, 1) == PasskeyTask(30887, 7, 1)
    assert choose_task(20, 5, 1) == PasskeyTask(39384, 20, 5)
    assert choose_task(7, -1, 2) != choose_task(7, -1, 1)


def test_the_prompt() -> None:
    junk = " The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
    assert PasskeyTask(123, 3, 1).text == (
        "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. I will quiz you"
        f" about the important information there.{junk} The pass key is 123. Remember it. 123 is the pass key."
        f"{junk}{junk} What is the pass key? The pass key is"
    )


@pytest.mark.parametrize(("n_junk", "pos"), [(0, -1), (0, 0), (-1, -1), (5, 5), (5, -2)])
def test_places_that_there_are_not(n_junk: int, pos: int) -> None:
    with pytest.raises(UsageError):
        choose_task(n_junk, pos, 1)


@pytest.mark.parametrize(
    ("answer", "found"),
    [(" 123. Remember", True), ("123", True), (" the number 123", True), (" 1234", False), (" 12", False),
     (" 0123", False), (" 5 or 123", False), (" unknown", False), ("", False)],
)  # fmt: skip
def test_the_first_number_counts(answer: str, found: bool) -> None:
    assert PasskeyTask(123, 3, 1).is_found(answer) is found


# -- runs ---------------------------------------------------------------------------------------------------------


class FakeContext:
    """Answers with the last token plus one; keeps each call's tokens."""

    def __init__(self, n_ctx: int, can_shift: bool = True) -> None:
        self.n_ctx, self.memory, self.calls = n_ctx, FakeMemory(can_shift), list[list[int]]()

    def decode(self, segments: list[Any]) -> Any:
        (segment,) = segments
        assert segment.seq is self.memory
        assert self.memory.n_tokens + len(segment.tokens) <= self.n_ctx, "more tokens than there are cells"
        self.memory.feed(segment.tokens)
        self.calls.append(list(segment.tokens))
        rows = np.zeros((int(segment.logits == "last"), 1000), np.float32)
        if len(rows):
            rows[0, segment.tokens[-1] + 1] = 1
        return rows


def run(
    n_tokens: int, n_ctx: int, n_batch: int, **options: Any
) -> tuple[FakeContext, PasskeyRun, list[int], list[str]]:
    n_keep = options.setdefault("n_keep", 4)
    ctx, lines = FakeContext(n_ctx + n_keep, options.pop("can_shift", True)), list[str]()
    test = PasskeyRun(ctx, n_ctx, n_batch, tell=lines.append, **options)
    answer = list(test.answer(list(range(n_tokens))))
    return ctx, test, answer, lines


def test_a_prompt_that_fits_is_left_alone() -> None:
    ctx, test, answer, lines = run(20, 40, 8, n_predict=3)
    assert ctx.calls == [list(range(8)), list(range(8, 16)), list(range(16, 20)), [20], [21]]
    assert answer == [20, 21, 22]
    assert ctx.memory.operations == []
    assert lines == ["processed: [     0,      8)", "processed: [     8,     16)", "processed: [    16,     20)"]
    assert test.n_shifts == 0


def test_a_prompt_that_outgrows_the_context_is_shifted() -> None:
    """llama.cpp's operations: a batch goes behind those kept, the rest moves up; and once more for the answer."""
    ctx, test, answer, lines = run(40, 24, 8, n_predict=3)
    assert ctx.memory.operations == [
        ("rm", 4, 12), ("add", 12, -1, -8),
        ("rm", 4, 12), ("add", 12, -1, -8),
        ("rm", 4, 7), ("add", 7, -1, -3),
    ]  # fmt: skip
    assert answer == [40, 41, 42]
    assert ctx.memory.tokens == [0, 1, 2, 3, *range(23, 42)]
    assert ctx.memory.positions == list(range(23))
    assert [line for line in lines if "shifting" in line] == [
        "shifting KV cache with 8", "shifting KV cache with 8",
        "shifting KV cache with 3 to free space for the answer",
    ]  # fmt: skip
    assert test.n_shifts == 3


def test_self_extend_groups_what_is_complete() -> None:
    ctx, test, _, _ = run(20, 64, 8, n_grp=2, n_predict=1)
    assert ctx.memory.operations == [
        ("add", 0, 8, 0), ("div", 0, 8, 2),
        ("add", 4, 12, 4), ("div", 8, 16, 2),
    ]  # fmt: skip
    assert ctx.memory.positions == [i // 2 for i in range(16)] + [8, 9, 10, 11]
    assert test.n_past == 12


def test_self_extend_and_then_a_shift() -> None:
    """What follows the first shift is not grouped any more, as in llama.cpp."""
    ctx, _, answer, lines = run(40, 24, 8, n_grp=2, n_predict=2)
    assert sum("shifting KV cache with 8" in line for line in lines) == 2
    assert answer == [40, 41]
    assert [name for name, *_ in ctx.memory.operations].count("div") == 2


def test_the_answer_ends_with_the_text() -> None:
    _, _, answer, _ = run(20, 40, 8, n_predict=9, eog_ids=frozenset({22}))
    assert answer == [20, 21]


def test_a_run_begins_with_an_empty_memory() -> None:
    ctx = FakeContext(44)
    test = PasskeyRun(ctx, 40, 8, n_predict=2)
    assert list(test.answer(list(range(30)))) == list(test.answer(list(range(30))))
    assert ctx.memory.n_tokens == 31


def test_a_memory_that_cannot_shift_is_named() -> None:
    assert run(20, 40, 8, can_shift=False)[2] == list(range(20, 36))
    with pytest.raises(UnsupportedError, match="outgrows the context"):
        run(50, 40, 8, can_shift=False)
    with pytest.raises(UnsupportedError, match="self-extend"):
        run(20, 40, 8, can_shift=False, n_grp=2)


def test_an_interruption_ends_prompt_and_answer() -> None:
    asked = 0

    def interrupted() -> bool:
        nonlocal asked
        asked += 1
        return asked > 4

    ctx, _, answer, _ = run(20, 40, 8, interrupted=interrupted)
    assert len(ctx.calls) == 4
    assert answer == [20]
    assert run(20, 40, 8, interrupted=lambda: True)[0].calls == []


# -- sizes --------------------------------------------------------------------------------------------------------


def test_the_context_is_llama_cpps() -> None:
    assert PasskeySizes(n_grp=4).n_ctx(512, 0) == 2048
    assert PasskeySizes(n_keep=32).n_ctx(512, 600) == 568


def test_the_window_leaves_half_of_the_positions_to_the_groups() -> None:
    assert PasskeySizes(n_batch=2048).chunk(512, 512) == 512
    assert PasskeySizes(n_batch=2048, n_grp=4).chunk(512, 2048) == 256
    assert PasskeySizes(n_batch=64, n_grp=4).chunk(512, 2048) == 64
    assert PasskeySizes(n_batch=2048, n_grp=3).chunk(512, 1536) == 255
    assert PasskeySizes(n_batch=2048, n_grp=4, width=400).chunk(512, 2048) == 400


@pytest.mark.parametrize(
    "sizes",
    [{"n_keep": -1}, {"n_keep": -(2**31)}, {"n_predict": 0}, {"width": -1}, {"n_grp": 0}, {"n_grp": 3, "width": 8}],
)
def test_sizes_that_make_no_sense(sizes: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        PasskeySizes(**sizes)


def test_a_context_without_room() -> None:
    with pytest.raises(UsageError, match="--keep 600"):
        PasskeySizes(n_keep=600).n_ctx(512, 600)
