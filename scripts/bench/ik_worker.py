"""Runs jobs on ik_llama.cpp: `python -m scripts.bench.ik_worker MODEL THREADS [REPACK]`; see jobs.py.

Its package brings the library and Python types for it, but not its llama-bench, so this does what that does: random
tokens, flash attention (but see `context`), f16 for K and V, batches of 2048 in passes of 512. PYTHONPATH names where
the package lies.
"""

import ctypes
import importlib
import random
import sys
import time
from typing import Any

from scripts.bench.jobs import Job, serve

N_BATCH, N_UBATCH = 2048, 512


class Ik:
    """The functions of the library that are needed here, with their types. Calls give up the GIL."""

    def __init__(self) -> None:
        self.types = importlib.import_module("ik_llama_cpp._ctypes_api")
        self.library = self.types._lib
        pointer, int32 = ctypes.c_void_p, ctypes.c_int32
        self._declare("llama_n_vocab", int32, pointer)
        self._declare("llama_synchronize", None, pointer)
        self._declare("llama_kv_cache_seq_rm", ctypes.c_bool, pointer, int32, int32, int32)
        self._declare("llama_batch_get_one", self.types.llama_batch, ctypes.POINTER(int32), int32, int32, int32)

    def _declare(self, name: str, result: Any, *arguments: Any) -> None:
        function = getattr(self.library, name)
        function.restype, function.argtypes = result, list(arguments)

    def load(self, path: str, repack: bool) -> int:
        """A model's handle."""
        self.types.llama_backend_init()
        params = self.types.llama_model_default_params()
        params.repack_tensors = repack
        handle: int | None = self.types.llama_model_load_from_file(path.encode(), params)
        if not handle:
            raise RuntimeError(f"ik_llama.cpp does not open {path}")
        return handle

    def context(self, model: int, n_ctx: int, n_threads: int, n_sequences: int) -> int:
        """A context's handle.

        For several sequences without flash attention: with it, a step that has a token of each ends in
        GGML_ASSERT(S > 0) (package 0.1.5, on processors with AVX-512).
        """
        params = self.types.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = n_ctx, N_BATCH, N_UBATCH, n_sequences
        params.n_threads = params.n_threads_batch = n_threads
        params.flash_attn = n_sequences == 1
        handle: int | None = self.types.llama_init_from_model(model, params)
        if not handle:
            raise RuntimeError("ik_llama.cpp makes no context")
        return handle

    def decode(self, ctx: int, batch: Any) -> None:
        """Computes a batch to its end."""
        code = self.types.llama_decode(ctx, batch)
        if code:
            raise RuntimeError(f"llama_decode gave {code}")
        self.library.llama_synchronize(ctx)


class Worker:
    """Keeps a context for each depth, with the tokens of the depth in it."""

    def __init__(self, path: str, n_threads: int, repack: bool) -> None:
        self._ik = Ik()
        self._model, self._n_threads = self._ik.load(path, repack), n_threads
        self._n_vocab = self._ik.library.llama_n_vocab(self._model)
        self._contexts: dict[int, int] = {}

    def do(self, job: Job) -> float:
        """Seconds of one repetition."""
        if job.kind == "together":
            return self._together(job)
        run = self._prompt if job.kind == "prompt" else self._generate
        ctx = self._at(job.depth, job.n)
        run(ctx, job.n if job.kind == "prompt" else 1, job.depth)
        self._ik.library.llama_kv_cache_seq_rm(ctx, 0, job.depth, -1)
        start = time.perf_counter()
        run(ctx, job.n, job.depth)
        seconds = time.perf_counter() - start
        self._ik.library.llama_kv_cache_seq_rm(ctx, 0, job.depth, -1)
        return seconds

    def _at(self, depth: int, n: int) -> int:
        if depth not in self._contexts:
            n_ctx = -(-(depth + max(n, 512)) // 256) * 256
            self._contexts[depth] = self._ik.context(self._model, n_ctx, self._n_threads, 1)
            self._prompt(self._contexts[depth], depth, 0)
        return self._contexts[depth]

    def _tokens(self, n: int) -> Any:
        return (ctypes.c_int32 * n)(*(random.randrange(self._n_vocab) for _ in range(n)))

    def _prompt(self, ctx: int, n: int, n_past: int) -> None:
        for first in range(0, n, N_BATCH):
            size = min(N_BATCH, n - first)
            self._ik.decode(ctx, self._ik.library.llama_batch_get_one(self._tokens(size), size, n_past + first, 0))

    def _generate(self, ctx: int, n: int, n_past: int) -> None:
        for i in range(n):
            self._ik.decode(ctx, self._ik.library.llama_batch_get_one(self._tokens(1), 1, n_past + i, 0))

    def _together(self, job: Job) -> float:
        n_ctx = -(-job.n_sequences * (job.n_prompt + job.n) // 256) * 256
        ctx = self._ik.context(self._model, n_ctx, self._n_threads, job.n_sequences)
        try:
            for seq in range(job.n_sequences):
                tokens = self._tokens(job.n_prompt)
                self._ik.decode(ctx, self._ik.library.llama_batch_get_one(tokens, job.n_prompt, 0, seq))
            start = time.perf_counter()
            for i in range(job.n):
                self._ik.decode(ctx, self._row(job.n_sequences, job.n_prompt + i))
            return time.perf_counter() - start
        finally:
            self._ik.types.llama_free(ctx)

    def _row(self, n_sequences: int, pos: int) -> Any:
        """A batch with one token for each sequence, logits wanted of all. The arrays live as long as the batch."""
        int32, pointer = ctypes.c_int32, ctypes.POINTER(ctypes.c_int32)
        ids = [int32(seq) for seq in range(n_sequences)]
        batch = self._ik.types.llama_batch()
        batch.n_tokens = n_sequences
        batch.token = self._tokens(n_sequences)
        batch.pos = (int32 * n_sequences)(*[pos] * n_sequences)
        batch.n_seq_id = (int32 * n_sequences)(*[1] * n_sequences)
        batch.seq_id = (pointer * n_sequences)(*map(ctypes.pointer, ids))
        batch.logits = (ctypes.c_int8 * n_sequences)(*[1] * n_sequences)
        return batch


def main() -> None:
    """Opens the model and serves."""
    start = time.perf_counter()
    worker = Worker(sys.argv[1], int(sys.argv[2]), sys.argv[3:] == ["repack"])
    serve(worker.do, time.perf_counter() - start)


if __name__ == "__main__":
    main()
