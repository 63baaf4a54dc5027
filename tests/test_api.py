"""The public API: what docs/api.md says, run as it stands there."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import llmkit
from llmkit import Context, ContextParams, Model, SamplingParams, StopReason, generate
from llmkit.errors import ContextFullError, LlmkitError, TokenizerError, UsageError
from tests.make_models import make_model
from tests.paths import REPO_ROOT

PAGE = (REPO_ROOT / "docs" / "api.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
GREEDY = SamplingParams(temp=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("api")
    make_model(place / "model.gguf", tokenizer="bpe", n_ctx_train=1024)
    return place


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return Model.open(folder / "model.gguf")


def run(code: str, folder: Path) -> str:
    env = {**os.environ, "PYTHONPATH": str(REPO_ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("code", EXAMPLES, ids=[str(i) for i in range(len(EXAMPLES))])
def test_the_examples_run(code: str, folder: Path) -> None:
    assert len(code.splitlines()) < 20
    shown = run(code, folder)
    assert shown.strip()
    assert "False" not in shown


def test_a_sequence_loaded_goes_on_as_the_copied_one(folder: Path) -> None:
    """The example of the page prints both."""
    code = next(code for code in EXAMPLES if "load_state" in code).replace("n_predict=8", "n_predict=8, sampling=G")
    lines = run("from llmkit import SamplingParams\nG = SamplingParams(temp=0)\n" + code, folder).splitlines()
    half = len(lines) // 2
    assert lines[:half] == lines[half:]


def test_importing_the_package_is_cheap() -> None:
    code = "import sys, llmkit; print(sorted({n.partition('.')[0] for n in sys.modules} & {'numpy', 'numba', 'typer'}))"
    assert run(code, REPO_ROOT) == "[]\n"


def test_the_list_is_what_there_is() -> None:
    assert sorted(llmkit.__all__) == llmkit.__all__
    assert all(getattr(llmkit, name) is not None for name in llmkit.__all__)
    assert set(llmkit.__all__) <= set(dir(llmkit))
    assert not [name for name in llmkit.__all__ if name != "__version__" and name not in PAGE]
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = llmkit.nonsense


def test_the_command_uses_it(folder: Path, model: Model) -> None:
    with Context(model, ContextParams(n_ctx=128)) as ctx:
        text = generate(ctx, "Some text", n_predict=12, sampling=GREEDY).text()
    args = [
        "run",
        "-m",
        "model.gguf",
        "-p",
        "Some text",
        "-n",
        "12",
        "--temp",
        "0",
        "-c",
        "128",
        "--no-display-prompt",
        "-q",
    ]
    code = f"import sys; from llmkit.cli import main; sys.exit(main({args!r}))"
    assert run(code, folder) == text


def test_a_sequence_of_its_own_is_given_back(model: Model) -> None:
    with Context(model, ContextParams(n_ctx=64)) as ctx:
        for _ in range(10):  # more than would fit together
            assert len(generate(ctx, "Some text", n_predict=20, sampling=GREEDY).text()) > 0
        stopped = iter(generate(ctx, "Some text", n_predict=20, sampling=GREEDY))
        next(stopped)
        del stopped  # as by `break`
        assert not ctx.kv.sequences


def test_a_given_sequence_keeps_what_was_computed(model: Model) -> None:
    with Context(model, ContextParams(n_ctx=256)) as ctx:
        seq = ctx.new_sequence()
        first = generate(ctx, "Some text", n_predict=6, seq=seq, sampling=GREEDY)
        first.text()
        n_tokens = seq.n_tokens
        second = generate(ctx, " more", n_predict=6, seq=seq, sampling=GREEDY)
        second.text()
        assert second.timings.prompt_n == len(model.tokenizer.encode(" more", add_special=False))
        assert seq.n_tokens > n_tokens
        ids = [*first.prompt_ids, *first.ids[:-1], *second.prompt_ids]
        alone = generate(ctx, ids, n_predict=6, sampling=GREEDY)
        alone.text()
        assert alone.ids == second.ids


def test_stops_logprobs_and_interruptions(model: Model) -> None:
    with Context(model, ContextParams(n_ctx=256)) as ctx:
        free = generate(ctx, "Some text", n_predict=12, n_logprobs=2, sampling=GREEDY)
        tokens = list(free)
        assert free.stop_reason is StopReason.LIMIT
        assert all(token.logprobs is not None and len(token.logprobs.top) == 2 for token in tokens)
        text = "".join(token.text for token in tokens) + free.tail
        stopped = generate(ctx, "Some text", n_predict=12, stop=text[3:5], sampling=GREEDY)
        assert stopped.text() == text[: text.index(text[3:5])]
        assert (stopped.stop_reason, stopped.stopping_word) == (StopReason.WORD, text[3:5])
        ended = generate(ctx, "Some text", interrupted=lambda: True)
        assert (ended.text(), ended.stop_reason) == ("", StopReason.INTERRUPTED)


def test_errors(folder: Path, model: Model) -> None:
    with pytest.raises(LlmkitError, match="there is no file"):
        Model.open(folder / "other.gguf")
    with Context(model, ContextParams(n_ctx=64)) as ctx:
        with pytest.raises(ContextFullError):
            generate(ctx, [1] * 65)
        with pytest.raises(UsageError, match="stop is an empty text"):
            generate(ctx, "x", stop="")
        with pytest.raises(UsageError, match="no token"):
            generate(ctx, [])
        with pytest.raises(UsageError, match="logit_bias names token"):
            generate(ctx, "x", sampling=SamplingParams(logit_bias=((10**6, 1.0),)))
        with pytest.raises(UsageError, match="not in the vocabulary"):
            generate(ctx, [10**6]).text()
        assert generate(ctx, "x", n_predict=2, sampling=GREEDY).text()


def test_a_model_without_a_tokenizer(tmp_path: Path) -> None:
    bare = Model.open(make_model(tmp_path / "ids.gguf"))
    with Context(bare, ContextParams(n_ctx=64)) as ctx:
        with pytest.raises(TokenizerError):
            generate(ctx, "text")
        numbers = generate(ctx, [1, 2, 3], n_predict=4, sampling=GREEDY)
        assert (numbers.text(), len(numbers.ids)) == ("", 4)


def test_contexts_of_one_model_decode_at_the_same_time(model: Model) -> None:
    def answer(prompt: str) -> list[int]:
        with Context(model, ContextParams(n_ctx=128, n_threads=1)) as ctx:
            generation = generate(ctx, prompt, n_predict=24, sampling=GREEDY)
            generation.text()
            return generation.ids

    prompts = ["Some text", "Other words", "A third one"]
    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(answer, prompts)) == [answer(prompt) for prompt in prompts]


def test_a_second_thread_is_refused(model: Model) -> None:
    with Context(model, ContextParams(n_ctx=64)) as ctx, ThreadPoolExecutor(1) as other:
        refused: list[BaseException | None] = []

        def ask() -> bool:
            """Called within the first thread's generation, but not while it decodes."""
            seq = ctx.new_sequence()
            with ctx.alone():
                refused.append(other.submit(ctx.decode, [llmkit.Segment(seq, [1], "last")]).exception())
            return True

        generate(ctx, "x", interrupted=ask).text()
        assert isinstance(refused[0], UsageError)


def test_without_a_name_the_default_is_opened(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMKIT_MODEL", str(folder / "model.gguf"))
    assert Model.open().gguf.path == folder / "model.gguf"


def test_logits_are_those_of_the_engine(model: Model) -> None:
    with Context(model, ContextParams(n_ctx=64)) as ctx:
        rows = ctx.decode([llmkit.Segment(ctx.new_sequence(), [1, 2, 3], "all")]).copy()
        again = ctx.decode([llmkit.Segment(ctx.new_sequence(), [1, 2, 3], "last")])
        assert np.array_equal(rows[-1], again[0])
