"""Measures what choosing a token costs over a large vocabulary, step by step, in CPU time of the calling thread.

Owns the rows and the one bound: the default chain takes less than 0.5 ms. CPU time hardly depends on what else runs.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmkit import report
from llmkit.cli import guarded
from llmkit.engine.generation.sampler import Sampler
from llmkit.params import SAMPLERS, SamplingParams

BOUND_MS = 0.5
EXIT_NEGATIVE = 2
N_GEMMA = 262_144
N_PAST = 64

_OFF: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
ROWS: dict[str, dict[str, Any]] = {
    "default": {},
    "default, bit mask": {},
    "default, ignore_eos": {"ignore_eos": True},
    "default, penalties": {"repeat_penalty": 1.1, "frequency_penalty": 0.1},
    "default, DRY": {"dry_multiplier": 0.8},
    "default, all of them": {
        "repeat_penalty": 1.1, "dry_multiplier": 0.8, "top_n_sigma": 2.0, "typical_p": 0.95, "xtc_probability": 0.5,
        "dynatemp_range": 0.5, "ignore_eos": True,
    },
    "adaptive-p": {"adaptive_target": 0.5, "samplers": (*SAMPLERS, "adaptive_p")},
    "greedy": {"temp": 0.0},
    "top-k 1000": _OFF | {"top_k": 1000},
    "min-p alone": _OFF | {"min_p": 0.05},
    "top-p alone": _OFF | {"top_p": 0.95},
    "typical alone": _OFF | {"typical_p": 0.5},
    "top-n-sigma alone": _OFF | {"top_n_sigma": 1.0},
    "temperature alone": _OFF,
    "mirostat 1": {"mirostat": 1},
    "mirostat 2": {"mirostat": 2},
}  # fmt: skip


def logits_of(model: str | None, n_vocab: int) -> NDArray[np.float32]:
    """One row: a model's after a few tokens, or made-up ones of the spread that models have."""
    if model is None:
        return np.random.default_rng(1).normal(0, 3, n_vocab).astype(np.float32)
    from llmkit.engine.batch import Segment
    from llmkit.engine.context import Context
    from llmkit.files.models_table import resolve_model
    from llmkit.models.model import load_model
    from llmkit.params import ContextParams

    with Context(load_model(resolve_model(model)), ContextParams(n_ctx=256)) as ctx:
        return ctx.decode([Segment(ctx.new_sequence(), [2, 818, 5279, 529, 7001, 563], "last")])[0].copy()


def cpu_ms(call: Callable[[], object], n: int) -> float:
    """The median of five rounds of n calls each, after a warm-up."""
    rounds = []
    for i in range(6):
        began = time.thread_time()
        for _ in range(n):
            call()
        rounds.append((time.thread_time() - began) / n * 1e3)
        if i == 0:
            rounds.clear()
    return sorted(rounds)[len(rounds) // 2]


def measure(name: str, logits: NDArray[np.float32], n: int) -> float:
    """Milliseconds of CPU for a token."""
    sampler = Sampler(SamplingParams(seed=1, **ROWS[name]), eog_ids=(1, 106))
    sampler.accept(int(i) for i in np.random.default_rng(2).integers(0, 20, N_PAST))
    allowed = np.full(-(-logits.size // 32), 0x55555555, np.uint32) if "mask" in name else None
    return cpu_ms(lambda: sampler.sample(logits, allowed), n)


def run(args: argparse.Namespace) -> int:
    """Prints a line per row, or one JSON object; 2 if the default chain is over its bound."""
    logits = logits_of(args.model, args.n_vocab)
    found = {name: measure(name, logits, args.n) for name in ROWS}
    if args.json:
        report.result(json.dumps({"n_vocab": logits.size, "cpu_ms": found}))
    else:
        report.result(f"CPU time for a token of {logits.size}:")
        for name, ms in found.items():
            report.result(f"{name:<24} {ms:8.3f} ms" + (f"   at most {BOUND_MS}" if name == "default" else ""))
    return 0 if found["default"] <= BOUND_MS else EXIT_NEGATIVE


def main(argv: list[str] | None = None) -> int:
    """Reads the options and measures."""
    parser = argparse.ArgumentParser(prog="scripts/bench_sampling", description=__doc__)
    parser.add_argument("-m", "--model", help="take the logits of this model instead of made-up ones")
    parser.add_argument("--n-vocab", type=int, default=N_GEMMA, help="how many made-up ones")
    parser.add_argument("-n", type=int, default=100, help="tokens of a round; there are five")
    parser.add_argument("--json", action="store_true")
    return run(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(guarded(main))
