"""How fast tensor types are written here, beside libgguf's reference quantizers on the same rows.

`python -m scripts.bench.bench_quantize [TYPE ...] [--rows N] [--cols N]`. CPU time of one thread, alternating, the best
of three.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import libgguf
import numpy as np

from llmkit import report
from llmkit.files.ggml_types import TYPE_IDS
from llmkit.quants.quantize.registry import TYPES, quantizer

ROUNDS = 3


def cpu_seconds(run: Callable[[], object]) -> float:
    before = time.process_time()
    run()
    return time.process_time() - before


def compare(name: str, rows: np.ndarray, importance: np.ndarray | None) -> tuple[float, float]:
    """Best CPU seconds of ours and of libgguf."""
    convert, type_id = quantizer(TYPE_IDS[name]), TYPE_IDS[name]
    out = np.empty((len(rows), convert.row_bytes(rows.shape[1])), np.uint8)
    ours, theirs = [], []
    for _ in range(ROUNDS):
        ours.append(cpu_seconds(lambda: convert(rows, importance, out)))
        theirs.append(cpu_seconds(lambda: libgguf.quantize_rows_into_raw(type_id, rows, out, *rows.shape, importance)))
    return min(ours), min(theirs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("types", nargs="*", default=[])
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--cols", type=int, default=3072)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((args.rows, args.cols)).astype(np.float32)
    importance = rng.exponential(1.0, args.cols).astype(np.float32)
    report.result(f"{'type':8s} {'importance':10s} {'ns/value':>9s} {'libgguf':>9s} {'times':>6s}")
    for name in args.types or [name for name in TYPES if name != "Q2_0"]:
        for label, weights in (("no", None), ("yes", importance)):
            mine, other = (1e9 * seconds / rows.size for seconds in compare(name, rows, weights))
            report.result(f"{name:8s} {label:10s} {mine:9.2f} {other:9.2f} {other / mine:6.2f}")


if __name__ == "__main__":
    main()
