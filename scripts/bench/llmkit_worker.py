"""Runs jobs on llmkit's engine: `python -m scripts.bench.llmkit_worker MODEL THREADS`; see jobs.py."""

import sys
import time

from llmkit.bench.measure import Stopwatch, decode_together
from llmkit.engine.context import Context
from llmkit.memory.block_pool import BLOCK_CELLS
from llmkit.models.model import Model, load_model
from llmkit.params import ContextParams
from scripts.bench.jobs import Job, serve

N_BATCH = 2048


class Worker:
    """Keeps the context of the deepest job, with the tokens of its depth in it."""

    def __init__(self, model: Model, n_threads: int) -> None:
        self._model, self._n_threads = model, n_threads
        self._contexts: dict[int, tuple[Context, Stopwatch]] = {}

    def do(self, job: Job) -> float:
        """Seconds of one repetition."""
        if job.kind == "together":
            n_cells = -(-(job.n_prompt + job.n) // BLOCK_CELLS) * BLOCK_CELLS
            with self._context(job.n_sequences * n_cells) as ctx:
                return decode_together(ctx, job.n_sequences, job.n_prompt, job.n)
        _, watch = self._at(job.depth, job.n)
        if job.kind == "prompt":
            watch.prompt(job.n)
        else:
            watch.generate(1)
        watch.back_to(job.depth)
        start = time.perf_counter()
        if job.kind == "prompt":
            watch.prompt(job.n)
        else:
            watch.generate(job.n)
        seconds = time.perf_counter() - start
        watch.back_to(job.depth)
        return seconds

    def _context(self, n_ctx: int) -> Context:
        return Context(self._model, ContextParams(n_ctx, n_batch=N_BATCH, n_threads=self._n_threads, swa_full=True))

    def _at(self, depth: int, n: int) -> tuple[Context, Stopwatch]:
        """A context whose sequence holds `depth` tokens, with room for `n` more."""
        if depth not in self._contexts or self._contexts[depth][0].n_ctx < depth + n:
            ctx = self._context(depth + max(n, 512))
            watch = Stopwatch(ctx, N_BATCH)
            watch.prompt(depth)
            self._contexts[depth] = ctx, watch
        return self._contexts[depth]


def main() -> None:
    """Opens the model and serves."""
    start = time.perf_counter()
    worker = Worker(load_model(sys.argv[1]), int(sys.argv[2]))
    serve(worker.do, time.perf_counter() - start)


if __name__ == "__main__":
    main()
