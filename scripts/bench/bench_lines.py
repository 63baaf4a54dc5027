"""What `run --batch-lines` is for: many short lines over one long prompt, against one run a line in the same process.

Owns the lines and the turns. A turn answers all lines in a batch, or some of them one after another, each with its
whole prompt. Both take the same tokens: the ids are compared.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from llmkit import report
from llmkit.cli import guarded
from llmkit.engine.context import Context
from llmkit.engine.generation.generate import Generation
from llmkit.engine.generation.lines import LineBatch, Make
from llmkit.engine.generation.sampler import Sampler
from llmkit.models.model import load_model
from llmkit.params import ContextParams, GenerateParams, SamplingParams
from llmkit.tokenizer import load_tokenizer
from scripts.bench.models import find_model

SUBJECTS = ["apples", "boats", "clouds", "deserts", "engines", "forests", "gardens", "harbours", "islands", "jackets"]
COMMON = "The clerk writes one short sentence about each thing that is named, in plain words, and nothing else. "


class Lines:
    """The prompts, for the engine."""

    def __init__(self, makes: list[Make]) -> None:
        self._makes = makes

    @property
    def ended(self) -> bool:
        """Whether all were taken."""
        return not self._makes

    def take(self, *, wait: bool) -> Make | None:
        """The next one."""
        return self._makes.pop(0) if self._makes else None


class Bench:
    """One model's lines; `batched` and `alone` return lines a second, tokens a second and the texts' ids."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.model = load_model(find_model(name), n_threads=options.threads)
        self.tokenizer = load_tokenizer(self.model.gguf)
        self.n_parallel, self.n_predict = options.parallel, options.n_predict
        params = ContextParams(2048, n_threads=options.threads, n_seq_max=self.n_parallel + 1, kv_unified=False)
        self.ctx = Context(self.model, params)
        self.ctx.warm_up()
        before = self.tokenizer.encode(COMMON * 100)[: options.prompt]
        self.before = self.tokenizer.decode(before)
        texts = [f"{self.before}\n{SUBJECTS[i % len(SUBJECTS)]} {i}:" for i in range(options.lines)]
        self.prompts = [self.tokenizer.encode(text) for text in texts]

    def _generation(self, number: int, seq_id: int) -> Generation:
        sampler = Sampler(SamplingParams(seed=number), self.tokenizer.eog_ids)
        return Generation(
            self.ctx, self.ctx.memory.sequence(seq_id), self.prompts[number], sampler,
            GenerateParams(self.n_predict, 512), self.tokenizer.eog_ids, self.tokenizer.stream(),
        )  # fmt: skip

    def _makes(self) -> list[Make]:
        def make(number: int) -> Make:
            return lambda seq_id: self._generation(number, seq_id)

        return [make(number) for number in range(len(self.prompts))]

    def batched(self) -> tuple[float, float, dict[int, list[int]]]:
        """All lines, many at once."""
        self.ctx.memory.clear()
        began, found = time.perf_counter(), dict[int, list[int]]()
        prefix = self.tokenizer.encode(self.before)
        for answer in LineBatch(self.ctx, Lines(self._makes()), self.n_parallel, 512, 1024, self.n_parallel, prefix):
            if answer.token is None and answer.generation is not None:
                found[answer.number] = answer.generation.ids
        return _speeds(found, time.perf_counter() - began)

    def alone(self, n_lines: int) -> tuple[float, float, dict[int, list[int]]]:
        """The first lines, one after another."""
        began, found = time.perf_counter(), dict[int, list[int]]()
        for number in range(n_lines):
            self.ctx.memory.clear()
            generation = self._generation(number, 0)
            for _ in generation:
                pass
            found[number] = generation.ids
        return _speeds(found, time.perf_counter() - began)


def _speeds(found: dict[int, list[int]], seconds: float) -> tuple[float, float, dict[int, list[int]]]:
    return len(found) / seconds, sum(map(len, found.values())) / seconds, found


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """The medians of the turns of one model."""
    bench, turns = Bench(name, options), dict[str, list[tuple[float, float]]](batched=[], alone=[])
    n_alone = min(options.alone, options.lines)
    for _ in range(options.rounds):
        lines, tokens, ids = bench.batched()
        turns["batched"].append((lines, tokens))
        lines, tokens, expected = bench.alone(n_alone)
        turns["alone"].append((lines, tokens))
        assert all(ids[number] == expected[number] for number in expected), "a line's text differs from its own run's"
    result: dict[str, Any] = {"model": bench.model.name, "n_parallel": options.parallel, "lines": options.lines}
    for way, measured in turns.items():
        result[way] = {
            "lines_per_second": round(median(speed[0] for speed in measured), 3),
            "tokens_per_second": round(median(speed[1] for speed in measured), 2),
        }
    result["times_faster"] = round(result["batched"]["lines_per_second"] / result["alone"]["lines_per_second"], 2)
    bench.ctx.close()
    return result


def main(arguments: list[str] | None = None) -> int:
    """Measures each model and shows a line for it."""
    options = _parser().parse_args(arguments)
    results = [measure(name, options) for name in options.models]
    if options.json:
        report.result_json(results)
        return 0
    ways: list[Callable[[dict[str, Any]], Any]] = [
        lambda r: r["model"], lambda r: r["batched"]["lines_per_second"], lambda r: r["batched"]["tokens_per_second"],
        lambda r: r["alone"]["lines_per_second"], lambda r: r["alone"]["tokens_per_second"],
        lambda r: r["times_faster"],
    ]  # fmt: skip
    headers = ("model", "batched lines/s", "t/s", "alone lines/s", "t/s", "times faster")
    report.result_table([[way(result) for way in ways] for result in results], headers)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/bench_lines", description=__doc__)
    parser.add_argument("models", nargs="*", default=["smollm2", "qwen"], help="files or names")
    parser.add_argument("--lines", type=int, default=100, help="lines of a batch (100)")
    parser.add_argument("--alone", type=int, default=10, help="lines that are also answered alone (10)")
    parser.add_argument("--prompt", type=int, default=500, help="tokens of the common prompt (500)")
    parser.add_argument("-n", "--n-predict", type=int, default=16, help="tokens of an answer (16)")
    parser.add_argument("-np", "--parallel", type=int, default=8, help="lines at once (8)")
    parser.add_argument("-t", "--threads", type=int, default=0, help="threads (as many as there are cores)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each way, one after the other (3)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    return parser


if __name__ == "__main__":
    raise SystemExit(guarded(main))
