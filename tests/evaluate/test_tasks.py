"""The three kinds of tasks: what their files may hold, and scores against the obvious way to compute them."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from llmkit.evaluate.choices import Choices, check_fits, choice_log_probs, mean_log_prob, split_choices
from llmkit.evaluate.errors import TaskFileError
from llmkit.evaluate.hellaswag import HellaswagScore, hellaswag, parse_hellaswag
from llmkit.evaluate.multiple_choice import MultipleChoiceScore, multiple_choice, parse_multiple_choice
from llmkit.evaluate.text import encode_text
from llmkit.evaluate.winogrande import parse_winogrande, winogrande
from tests.evaluate import samples
from tests.evaluate.contexts import next_log_probs, small_context
from tests.make_models import make_model
from tests.paths import DATA, need_shared

# -- files ------------------------------------------------------------------------------------------------------------


def test_hellaswag_files() -> None:
    tasks = parse_hellaswag(samples.hellaswag_file().removesuffix("\n"))
    assert [(t.context, t.gold, tuple(t.endings)) for t in tasks] == samples.HELLASWAG_TASKS


@pytest.mark.parametrize(
    ("text", "what"),
    [("a\n0\nb\nc\nd", "5 lines"), ("a\n4\nb\nc\nd\ne", "line 2 is '4'"), ("a\nx\nb\nc\nd\ne", "line 2 is 'x'")],
)
def test_bad_hellaswag_files(text: str, what: str) -> None:
    with pytest.raises(TaskFileError, match=what):
        parse_hellaswag(text)


def test_winogrande_files() -> None:
    """The last line counts without a newline too; a comma may stand in quotes."""
    text = samples.winogrande_file().removesuffix("\n")
    tasks = parse_winogrande(text)
    assert [(f"{t.before}_{t.after}", *t.choices, t.answer) for t in tasks] == samples.WINOGRANDE_TASKS
    assert parse_winogrande("0,I like _.,tea,milk,1")[0].text(1) == "I like milk."


@pytest.mark.parametrize(
    ("line", "what"),
    [("0,a _ b,c,d", "4 fields"), ("0,a b,c,d,1", "no `_`"), ("0,a _ b,c,d,3", "'3'"), ("0,a _ b,c,d,", "''")],
)
def test_bad_winogrande_files(line: str, what: str) -> None:
    with pytest.raises(TaskFileError, match=f"line 2 has.*{what}"):
        parse_winogrande(f"0,a _ b,c,d,1\n{line}")


def test_multiple_choice_files() -> None:
    tasks = parse_multiple_choice(samples.multiple_choice_file(), 0)
    expected = [(q, a, [int(i == right) for i in range(len(a))]) for q, a, right in samples.MULTIPLE_CHOICE_TASKS]
    assert [(t.question, t.answers, t.labels) for t in tasks] == expected


def test_some_multiple_choice_tasks_are_found_by_their_positions() -> None:
    every = parse_multiple_choice(samples.multiple_choice_file(), 0)
    some = parse_multiple_choice(samples.multiple_choice_file(), 3)
    assert len(some) == 3
    assert all(task in every for task in some)
    assert some != every[:3]


def test_a_multiple_choice_file_cut_anywhere() -> None:
    whole = samples.multiple_choice_file()
    for n in range(len(whole)):
        with pytest.raises(TaskFileError):
            parse_multiple_choice(whole[:n], 0)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(4),
        b"\xff" * 100,
        samples.multiple_choice_file([("q", [""], 0)]),
        samples.multiple_choice_file([("", ["a"], 0)]),
    ],
)
def test_bad_multiple_choice_files(data: bytes) -> None:
    with pytest.raises(TaskFileError):
        parse_multiple_choice(data, 0)


def test_more_answers_than_anybody_needs() -> None:
    with pytest.raises(TaskFileError, match="101 answers"):
        parse_multiple_choice(samples.multiple_choice_file([("q", ["a"] * 101, 0)]), 0)


# -- choices ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "prefix", "tails"),
    [
        ([[1, 2, 3], [1, 2, 4, 5]], [1, 2], [[3], [4, 5]]),
        ([[1, 2], [1, 2, 3]], [1], [[2], [2, 3]]),
        ([[1], [2]], [], [[1], [2]]),
        ([[1, 2], [1, 2]], [1], [[2], [2]]),
    ],
)
def test_every_choice_keeps_a_token_of_its_own(
    texts: list[list[int]], prefix: list[int], tails: list[list[int]]
) -> None:
    assert split_choices(texts) == Choices(prefix, tails)


def test_a_task_too_long() -> None:
    with pytest.raises(TaskFileError, match=r"task 2 has 9 tokens.*room for 8"):
        check_fits([Choices([1] * 4, [[1]]), Choices([1] * 4, [[1], [1] * 5])], 8)


def test_tokens_without_a_probability_do_not_count() -> None:
    assert mean_log_prob(np.array([np.nan, -1.0, -2.0])) == -1.5
    assert mean_log_prob(np.array([np.nan])) == -np.inf


@pytest.mark.parametrize("n_ctx", [64, 2048])
def test_log_probs_of_choices_are_those_of_whole_texts(tmp_path: Any, n_ctx: int) -> None:
    """However many tasks share a batch, with beginnings of 0, 1 and many tokens."""
    rng = np.random.default_rng(5)
    tasks = []
    for n_prefix, lengths in ((0, [1, 3]), (1, [2, 1, 5]), (20, [4, 4]), (30, [1, 9, 2, 3]), (7, [30, 12])) * 8:
        prefix = rng.integers(0, 300, n_prefix).tolist()
        tasks.append(Choices(prefix, [rng.integers(0, 300, n).tolist() for n in lengths]))
    with small_context(make_model(tmp_path / "m.gguf", n_vocab=300), n_ctx=n_ctx) as ctx:
        results = list(choice_log_probs(ctx, tasks))
        assert not ctx.kv.sequences
        assert len(results) == len(tasks)
        for task, found in zip(tasks, results, strict=True):
            for tail, log_probs in zip(task.tails, found, strict=True):
                whole = np.concatenate([[np.nan], next_log_probs(ctx, task.prefix + tail)])
                np.testing.assert_allclose(log_probs, whole[len(task.prefix) :], atol=1e-6)


# -- scores -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def stories() -> Iterator[tuple[Any, Any]]:
    from llmkit.tokenizer import load_tokenizer

    with small_context(DATA / "stories260K.gguf") as ctx:
        yield ctx, load_tokenizer(ctx.model.gguf)


@need_shared
def test_hellaswag_takes_the_ending_that_is_likeliest_a_token(stories: tuple[Any, Any]) -> None:
    ctx, tokenizer = stories
    tasks = parse_hellaswag(samples.hellaswag_file().removesuffix("\n"))
    scores = list(hellaswag(ctx, tokenizer, tasks, len(tasks)))
    n_right = 0
    for task in tasks:
        texts = [encode_text(tokenizer, f"{task.context} {ending}").tolist() for ending in task.endings]
        n = len(split_choices(texts).prefix)
        means = [next_log_probs(ctx, text)[n - 1 :].mean() for text in texts]
        n_right += int(np.argmax(means)) == task.gold
    assert (scores[-1].n, scores[-1].n_right) == (len(tasks), n_right)
    assert len(list(hellaswag(ctx, tokenizer, tasks, 3))) == 3


@need_shared
def test_winogrande_compares_what_follows_the_choice(stories: tuple[Any, Any]) -> None:
    ctx, tokenizer = stories
    tasks = parse_winogrande(samples.winogrande_file())
    for task, score in zip(tasks, winogrande(ctx, tokenizer, tasks, 0), strict=True):
        for k in (0, 1):
            text = encode_text(tokenizer, task.text(k)).tolist()
            start = len(encode_text(tokenizer, task.before + task.choices[k]))
            assert score.scores[k] == pytest.approx(next_log_probs(ctx, text)[start - 1 : -1].mean(), abs=1e-6)
        assert score.chosen == 1 + (score.scores[1] >= score.scores[0])


@need_shared
def test_winogrande_with_little_after_the_blank_takes_the_choice_in(stories: tuple[Any, Any]) -> None:
    ctx, tokenizer = stories
    tasks = parse_winogrande("0,Tim likes the _,dog,moon,1")
    score = next(winogrande(ctx, tokenizer, tasks, 0))
    texts = [encode_text(tokenizer, tasks[0].text(k)).tolist() for k in (0, 1)]
    n = len(split_choices(texts).prefix)
    for k in (0, 1):
        last = -1 if len(texts[k]) - n > 1 else None
        assert score.scores[k] == pytest.approx(next_log_probs(ctx, texts[k])[n - 1 : last].mean(), abs=1e-6)


@need_shared
def test_multiple_choice_counts_answers(stories: tuple[Any, Any]) -> None:
    ctx, tokenizer = stories
    score = list(multiple_choice(ctx, tokenizer, parse_multiple_choice(samples.multiple_choice_file(), 0)))[-1]
    assert (score.n, score.n_answers) == (5, 16)
    assert score.chance == 5 / 16


@need_shared
def test_stop_keeps_what_is_done(stories: tuple[Any, Any]) -> None:
    ctx, tokenizer = stories
    tasks = parse_multiple_choice(samples.multiple_choice_file(samples.MULTIPLE_CHOICE_TASKS * 14), 0)
    seen: list[MultipleChoiceScore] = []
    for score in multiple_choice(ctx, tokenizer, tasks, lambda: bool(seen)):
        seen.append(score)
    assert len(seen) == 32
    assert not ctx.kv.sequences


def test_the_interval_of_wilson() -> None:
    """8 of 10: 49.0% to 94.3% (the textbook's)."""
    low, high = HellaswagScore(10, 8).interval
    assert (low, high) == (pytest.approx(0.4902, abs=1e-4), pytest.approx(0.9433, abs=1e-4))
