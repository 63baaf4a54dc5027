"""llama-batched-bench's cases, formats, and how a case is run."""

import json
from pathlib import Path
from typing import Any

import pytest

from llmkit.bench.batched import BatchedCase, BatchedParameters, BatchedRun, Interrupted, Room, Times
from llmkit.bench.batched_formats import BATCHED_FORMATS, BatchedRow, BatchedSettings
from llmkit.engine.batch import Segment
from llmkit.engine.context import Context
from llmkit.errors import ContextFullError, UsageError
from llmkit.params import ContextParams
from tests.engine_runs import load
from tests.make_models import make_model

SETTINGS = BatchedSettings(512, 2048, 512, -1, 2, False, False)
# A row that llama-batched-bench (b11434) printed, with the times that it had.
MEASURED = BatchedRow(BatchedCase(32, 8, 2), Times(3.032, 3.888, 7, 9, 99))


def written(name: str, rows: list[BatchedRow], settings: BatchedSettings = SETTINGS) -> str:
    printer = BATCHED_FORMATS[name]()
    return printer.header(settings) + "".join(map(printer.row, rows)) + printer.footer()


def test_markdown_is_llama_cpps() -> None:
    assert written("md", [MEASURED]) == (
        "\n"
        "llama_batched_bench: n_kv_max = 512, n_batch = 2048, n_ubatch = 512, flash_attn = -1, is_pp_shared = 0, "
        "is_tg_separate = 0, n_gpu_layers = -1, n_threads = 2, n_threads_batch = 2\n"
        "\n"
        "|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |\n"
        "|-------|--------|------|--------|----------|----------|----------|----------|----------|----------|\n"
        "|    32 |      8 |    2 |     80 |    3.032 |    21.11 |    3.888 |     4.12 |    6.920 |    11.56 |\n"
        "\n"
    )


def test_jsonl_has_llama_cpps_keys_in_order_and_then_ours() -> None:
    text = written("jsonl", [MEASURED])
    assert text.startswith(
        '{"n_kv_max": 512, "n_batch": 2048, "n_ubatch": 512, "flash_attn": -1, "is_pp_shared": 0, '
        '"n_gpu_layers": -1, "n_threads": 2, "n_threads_batch": 2, "pp": 32, "tg": 8, "pl": 2, "n_kv": 80, '
        '"t_pp": 3.032000, "speed_pp": 21.108179, "t_tg": 3.888000, "speed_tg": 4.115226, "t": 6.920000, '
        '"speed": 11.560694, '
    )
    own = list(json.loads(text).items())[18:]
    assert own == [
        ("is_tg_separate", 0), ("kv_used_bytes", 7), ("kv_peak_bytes", 9), ("n_kv_needed", 80), ("fits", True),
    ]  # fmt: skip
    assert text.count("\n") == 1


def test_settings_are_shown() -> None:
    settings = BatchedSettings(4096, 64, 32, 1, 7, True, True)
    shown = "flash_attn = 1, is_pp_shared = 1, is_tg_separate = 1, n_gpu_layers = -1, n_threads = 7,"
    assert f"n_kv_max = 4096, n_batch = 64, n_ubatch = 32, {shown}" in written("md", [], settings)


def test_what_does_not_fit_has_a_row() -> None:
    """L#13553: an empty table says nothing."""
    row = BatchedRow(BatchedCase(512, 512, 128), None, Room(131072, 4096))
    line = written("md", [row]).splitlines()[-2]
    assert line.startswith("|   512 |    512 |  128 | 131072 | does not fit: 131072 tokens needed, 4096 available ")
    assert len(line) == len(written("md", [MEASURED]).splitlines()[-2])
    value = json.loads(written("jsonl", [row]))
    assert (value["n_kv_needed"], value["n_kv_max"], value["fits"]) == (131072, 512, False)
    assert value["speed_tg"] is value["t"] is value["kv_used_bytes"] is None


def test_what_a_case_needs() -> None:
    """L#4280: a shared prompt counts once."""
    assert BatchedCase(128, 128, 8, shared=True).n_kv == 1152
    assert BatchedCase(128, 128, 8).n_kv == 2048


def test_speeds_of_a_shared_prompt() -> None:
    row = BatchedRow(BatchedCase(100, 10, 4, shared=True), Times(2.0, 0.5, 0, 0, 0))
    assert row.figures() == [2.0, 50.0, 0.5, 80.0, 2.5, 140 / 2.5]


def test_combinations_in_llama_cpps_order() -> None:
    cases = list(BatchedParameters([1, 2], [3], [4, 5], shared=True).cases())
    assert [(c.n_pp, c.n_tg, c.n_pl) for c in cases] == [(1, 3, 4), (1, 3, 5), (2, 3, 4), (2, 3, 5)]
    assert all(c.shared for c in cases)


@pytest.mark.parametrize(
    ("lists", "named"), [(([], [1], [1]), "-npp"), (([1], [], [1]), "-ntg"), (([1], [1], [0]), "-npl holds 0")]
)
def test_lists_are_checked(lists: tuple[list[int], ...], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        BatchedParameters(*lists)


# -- runs ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("bench") / "m.gguf")


class Recorder:
    """What a run hands to decode: of each segment the sequence, how many tokens, and which logits."""

    def __init__(self, path: Path, n_ctx: int, n_seq: int, n_batch: int = 2048) -> None:
        self.ctx = Context(load(path), ContextParams(n_ctx=n_ctx, n_threads=1, n_seq_max=n_seq))
        self.run = BatchedRun(self.ctx, n_batch, lambda: self.stop)
        self.stop, self.calls = False, list[list[tuple[int, int, str]]]()
        decode = self.ctx.decode

        def record(segments: list[Segment]) -> Any:
            ids = {id(self.ctx.memory.sequence(i)): i for i in range(n_seq)}
            self.calls.append([(ids[id(s.seq)], len(s.tokens), s.logits) for s in segments])
            return decode(segments)

        self.ctx.decode = record  # type: ignore[method-assign]


def test_prompts_in_batches_then_a_token_of_each(path: Path) -> None:
    recorder = Recorder(path, 64, 2, n_batch=16)
    times = recorder.run.run(BatchedCase(12, 2, 2))
    assert recorder.calls == [
        [(0, 12, "last"), (1, 4, "none")],
        [(1, 8, "last")],
        *[[(0, 1, "last"), (1, 1, "last")]] * 2,
    ]
    assert times.t_pp > 0
    assert times.t_tg > 0
    block = recorder.ctx.kv.pool.block_bytes
    assert (times.kv_used, times.kv_peak) == (2 * block, 2 * block)


def test_a_shared_prompt_is_computed_once(path: Path) -> None:
    recorder = Recorder(path, 128, 3)
    times = recorder.run.run(BatchedCase(64, 2, 3, shared=True))
    assert recorder.calls == [[(0, 64, "last")], *[[(i, 1, "last") for i in range(3)]] * 2]
    assert [recorder.ctx.memory.seq_pos_max(i) for i in range(3)] == [65] * 3
    assert times.kv_used == (2 + 3) * recorder.ctx.kv.pool.block_bytes


def test_separate_generations(path: Path) -> None:
    recorder = Recorder(path, 64, 2)
    recorder.run.run(BatchedCase(4, 3, 2, separate=True))
    assert recorder.calls[1:] == [[(0, 1, "last")]] * 3 + [[(1, 1, "last")]] * 3


def test_cases_begin_with_an_empty_memory_and_a_peak_of_their_own(path: Path) -> None:
    recorder = Recorder(path, 160, 4)
    recorder.run.warm_up()
    large = recorder.run.run(BatchedCase(32, 4, 4))
    small = recorder.run.run(BatchedCase(8, 2, 1))
    assert large.kv_peak > small.kv_peak == small.kv_used == recorder.ctx.kv.pool.block_bytes
    assert recorder.ctx.memory.seq_pos_max(3) == -1


@pytest.mark.parametrize(
    "case",
    [
        BatchedCase(33, 7, 4),
        BatchedCase(60, 9, 8, shared=True),
        BatchedCase(31, 1, 5, shared=True),
        BatchedCase(1, 1, 32),
    ],
)
def test_what_counts_as_fitting_fits(path: Path, case: BatchedCase) -> None:
    """Tokens are counted, although memory comes in blocks; one token less does not fit."""
    recorder = Recorder(path, case.n_kv, case.n_pl)
    assert recorder.run.room(case) is None
    recorder.run.run(case)
    assert Recorder(path, case.n_kv - 1, case.n_pl).run.room(case) == Room(case.n_kv, case.n_kv - 1)


def test_an_interruption(path: Path) -> None:
    recorder = Recorder(path, 64, 1)
    recorder.stop = True
    with pytest.raises(Interrupted):
        recorder.run.run(BatchedCase(4, 3, 1))
    assert recorder.calls == []


def test_a_run_that_does_not_fit_is_an_error(path: Path) -> None:
    with pytest.raises(ContextFullError):
        Recorder(path, 32, 1).run.run(BatchedCase(40, 1, 1))
