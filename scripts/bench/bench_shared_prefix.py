"""What it brings that sequences share a prefix: the same steps with shared and with private copies, in turns.

Owns the two sets of sequences, the turns and the table. Private copies have the same bits in blocks of their own, so
each pair of steps must give equal logits, which is checked. CPU seconds stand beside those of the clock: they say more
where others work too.
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np

from llmkit import report
from llmkit.cli import guarded
from llmkit.engine.batch import Segment, Wanted
from llmkit.engine.context import Context
from llmkit.errors import LlmkitError
from llmkit.memory.block_pool import BLOCK_CELLS
from llmkit.memory.chain import CELL
from llmkit.memory.sequence import Sequence
from llmkit.models.model import load_model
from llmkit.params import ContextParams
from scripts.bench.cpu_watch import CpuWatch
from scripts.bench.models import find_model

_WARM_UP = 2  # turns that do not count


@dataclass(frozen=True)
class Result:
    """Medians of a step's milliseconds, by the clock and of CPU, shared and private; the ratios of these."""

    model: str
    what: str
    shared_ms: float
    private_ms: float
    shared_cpu_ms: float
    private_cpu_ms: float

    @property
    def ratio(self) -> float:
        return self.private_ms / self.shared_ms

    @property
    def cpu_ratio(self) -> float:
        return self.private_cpu_ms / self.shared_cpu_ms


class Sets:
    """n sequences that share a prefix, and n with a private copy each, in one context."""

    def __init__(self, model: Path, n_prefix: int, n_own: int, options: argparse.Namespace) -> None:
        n, kv, threads = options.sequences, options.kv, options.threads
        # All tokens are kept, of layers with a window too: so tails can be taken back.
        params = ContextParams(
            n_prefix + n_own, 2048, 512, threads, kv, kv, n_seq_max=2 * n + 1, kv_unified=False, swa_full=True
        )
        self.ctx = Context(load_model(model), params)
        self.rng = np.random.default_rng(1)
        self.ids, self.n_prefix = self.tokens(n_prefix), n_prefix
        self.source = self.ctx.memory.sequence(0)
        self.ctx.decode([Segment(self.source, self.ids, "none")])
        for i in range(1, n + 1):
            self.ctx.memory.seq_cp(0, i)
        self.shared = [self.ctx.memory.sequence(i) for i in range(1, n + 1)]
        self.private = list[Sequence]()

    def tokens(self, n: int) -> list[int]:
        """Random ones."""
        return [int(i) for i in self.rng.integers(0, self.ctx.model.config.n_vocab, n)]

    def copy(self) -> None:
        """Makes the private sequences: blocks of their own, with the same bits."""
        for _ in self.shared:
            seq = self.ctx.new_sequence()
            self.ctx.kv.append(seq, np.array(self.ids, np.int32))
            for k, pool in enumerate(self.ctx.kv.pools):
                first = slice(None, None, BLOCK_CELLS)
                source, target = (s.chain.column(CELL + k)[first] // BLOCK_CELLS for s in (self.source, seq))
                pool.copy(source, target)
            self.private.append(seq)

    def step(self, seqs: list[Sequence], tokens: list[list[int]], logits: Wanted) -> tuple[float, float, bytes]:
        """Seconds and CPU seconds of one batch, and the logits."""
        clock, cpu = time.perf_counter(), time.process_time()
        rows = self.ctx.decode([Segment(seq, ids, logits) for seq, ids in zip(seqs, tokens, strict=True)])
        return time.perf_counter() - clock, time.process_time() - cpu, rows.tobytes()

    def alternate(self, n_turns: int, n_tokens: int, after: Callable[[], None]) -> list[float]:
        """Turns of both sets with the same tokens; medians in milliseconds: clock of both, CPU of both."""
        times = list[tuple[float, float, float, float]]()
        for turn in range(n_turns + _WARM_UP):
            tokens = [self.tokens(n_tokens) for _ in self.shared]
            sets = [self.shared, self.private]
            done = [self.step(seqs, tokens, "last") for seqs in (sets if turn % 2 else sets[::-1])]
            (a, a_cpu, a_rows), (b, b_cpu, b_rows) = done if turn % 2 else done[::-1]
            if a_rows != b_rows:
                raise LlmkitError("shared and private copies gave different logits")
            times.append((a, b, a_cpu, b_cpu))
            after()
        return [1e3 * median(column) for column in zip(*times[_WARM_UP:], strict=True)]


def decoding(name: str, options: argparse.Namespace) -> tuple[Result, float]:
    """Single tokens of all sequences; and the blocks of the shared set, as multiples of those of one sequence."""
    n_own = options.own + _WARM_UP
    sets = Sets(find_model(name), options.prefix, n_own, options)
    with sets.ctx as ctx:
        sets.copy()
        times = sets.alternate(options.own, 1, lambda: None)
        blocks = np.unique(np.concatenate([seq.chain.blocks(0) for seq in sets.shared])).size
        one = sets.shared[0].chain.blocks(0).size
        what = f"decode, {len(sets.shared)} over {options.prefix}, {options.own} own"
        assert ctx.n_threads == options.threads
        return Result(name, what, *times), blocks / one


def tails(name: str, options: argparse.Namespace) -> Result:
    """The ends of prompts of all sequences at once, behind a prefix that is there already."""
    sets = Sets(find_model(name), options.tail_prefix, options.tail, options)

    def take_back() -> None:
        for seq in (*sets.shared, *sets.private):
            sets.ctx.kv.truncate(seq, sets.n_prefix)

    with sets.ctx:
        sets.copy()
        times = sets.alternate(options.rounds, options.tail, take_back)
        what = f"{len(sets.shared)} tails of {options.tail} over {options.tail_prefix}"
        return Result(name, what, *times)


def main() -> int:
    """Measures and shows a line for each."""
    options = _parser().parse_args()
    watch, results, blocks = CpuWatch(), list[Result](), dict[str, float]()
    for name in options.models or ["qwen", "smollm2"]:
        result, blocks[name] = decoding(name, options)
        results.append(result)
        report.note(f"{name}: {result.what}: {result.ratio:.2f} times as fast as with private copies")
        results.append(tails(name, options))
    show(results, blocks, watch.others(), as_json=options.json)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/bench_shared_prefix", description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="short names, or files (default: qwen smollm2)")
    parser.add_argument("--sequences", type=int, default=10)
    parser.add_argument("--prefix", type=int, default=4096, help="tokens that all share (4096)")
    parser.add_argument("--own", type=int, default=64, help="tokens that each then generates (64)")
    parser.add_argument("--tail", type=int, default=32, help="tokens of a tail (32)")
    parser.add_argument("--tail-prefix", type=int, default=1200, help="tokens before the tails (1200)")
    parser.add_argument("--rounds", type=int, default=8, help="turns of the tails (8)")
    parser.add_argument("--kv", default="f16", help="type of K and V (f16)")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    return parser


def show(results: list[Result], blocks: dict[str, float], others: float | None, *, as_json: bool) -> None:
    """A line a measurement, and the memory."""
    if as_json:
        rows = [{**asdict(r), "ratio": r.ratio, "cpu_ratio": r.cpu_ratio} for r in results]
        report.result_json({"results": rows, "kv_blocks_of_one": blocks, "others_cores": others})
        return
    table = [
        [r.model, r.what, f"{r.shared_ms:.1f}", f"{r.private_ms:.1f}", f"{r.ratio:.2f}", f"{r.cpu_ratio:.2f}"]
        for r in results
    ]
    report.result_table(table, ["model", "what", "shared ms", "private ms", "ratio", "CPU ratio"])
    for name, n in blocks.items():
        report.result(f"{name}: the sequences that share take {n:.2f} times the KV blocks of one")
    if others is not None and others > 0.1:
        report.warning(f"other processes used {others:.2f} cores on average meanwhile")


if __name__ == "__main__":
    sys.exit(guarded(main))
