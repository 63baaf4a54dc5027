"""Saving and loading the state of one sequence: speed beside the disk's own, memory, and pages that processes share.

Saving is measured in turns with writing the same bytes to the same folder (write, fsync, rename); loading, with all
checks, into a running engine and from the page cache. Ends with 2 when a bound that llmkit sets itself is missed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from llmkit import report
from llmkit.cli import guarded
from llmkit.engine.batch import Segment
from llmkit.engine.context import Context
from llmkit.engine.state.save_load import load_state, read_state_info, save_state
from llmkit.files.atomic import finished_file
from llmkit.memory.sequence import Sequence
from llmkit.models.model import load_model
from llmkit.params import ContextParams
from scripts.bench.cpu_watch import CpuWatch
from scripts.bench.engines import ROOT
from scripts.bench.models import find_model
from scripts.bench.shared_pages import resident

LOAD_BOUND_MS, DISK_BOUND = 15.0, 0.5
EXIT_MISSED = 2
SUFFIX = ".state"


def main(arguments: list[str] | None = None) -> int:
    """Measures and shows; returns the exit code."""
    options = _parser().parse_args(arguments)
    model = find_model(options.model)
    if options.reader:
        return _read(model, Path(options.reader))
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="bench-state-") as folder:
        result = _measure(model, Path(folder) / f"a{SUFFIX}", options)
    missed = [name for name, met in result["bounds"].items() if not met]
    if options.json:
        report.result_json(result)
    else:
        report.result_table(
            [[name, value] for name, value in result.items() if name != "bounds"], ("measured", "value")
        )
    for name in missed:
        report.note(f"missed: {name}")
    return EXIT_MISSED if missed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/bench_state", description=__doc__)
    parser.add_argument("model", nargs="?", default="qwen", help="a short name or a file (default: qwen)")
    parser.add_argument("--tokens", type=int, default=4096, help="tokens of the sequence (default: 4096)")
    parser.add_argument("--turns", type=int, default=7, help="times that each is measured (default: 7)")
    parser.add_argument("--dir", default=None, help="folder to write to (default: the system's for temporary files)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--reader", default="", help=argparse.SUPPRESS)
    return parser


def _context(model: Path, n_tokens: int) -> Context:
    return Context(load_model(model), ContextParams(n_ctx=n_tokens + 64))


def _timed(turns: int, work: Callable[[], Any]) -> tuple[float, float]:
    """Median milliseconds of the clock and of the CPU."""
    clock, cpu = [], []
    for _ in range(turns):
        start, used = time.perf_counter(), time.process_time()
        work()
        clock.append(time.perf_counter() - start)
        cpu.append(time.process_time() - used)
    return 1000 * median(clock), 1000 * median(cpu)


def _measure(model: Path, path: Path, options: argparse.Namespace) -> dict[str, Any]:
    watch = CpuWatch()
    with _context(model, options.tokens) as ctx:
        seq = ctx.new_sequence()
        ids = np.random.default_rng(0).integers(0, ctx.model.config.n_vocab, options.tokens).tolist()
        report.note(f"computing {options.tokens} tokens")
        ctx.decode([Segment(seq, ids, "none")])
        info = save_state(ctx, path, seq)
        saved, plain = _write_in_turns(ctx, seq, path, options.turns)
        load_ms, load_cpu_ms = _timed(max(9, options.turns), lambda: load_state(ctx, path, seq))
        small = save_state(ctx, path.with_suffix(".zst"), seq, compress=True)
        archive_ms, _ = _timed(3, lambda: load_state(ctx, path.with_suffix(".zst"), seq))
        memory = _memory(ctx, seq, path, model)
    megabytes = info.n_bytes / 1e6
    result: dict[str, Any] = {
        "model": model.stem,
        "n_tokens": options.tokens,
        "file_mb": round(megabytes, 2),
        "save_mb_s": round(megabytes / saved, 1),
        "plain_write_mb_s": round(megabytes / plain, 1),
        "save_of_disk": round(plain / saved, 3),
        "load_ms": round(load_ms, 2),
        "load_cpu_ms": round(load_cpu_ms, 2),
        "compressed_mb": round(small.n_bytes / 1e6, 2),
        "compressed_load_ms": round(archive_ms, 1),
        **memory,
        "cores_of_others": watch.others(),
    }
    result["bounds"] = {
        f"saving at {DISK_BOUND:.0%} of the disk's speed": result["save_of_disk"] >= DISK_BOUND,
        f"loading within {LOAD_BOUND_MS:.0f} ms": load_ms <= LOAD_BOUND_MS,
        "loading takes no pages": memory["load_rss_kib"] <= 1024,
        "two processes share the pages": memory["two_pss_kib"] <= 1.1 * memory["two_rss_kib"] / 2,
    }
    return result


def _write_in_turns(ctx: Context, seq: Sequence, path: Path, turns: int) -> tuple[float, float]:
    """Median seconds of saving, and of writing the same bytes."""
    data, saved, plain = path.read_bytes(), [], []
    for _ in range(turns):
        start = time.perf_counter()
        save_state(ctx, path, seq)
        saved.append(time.perf_counter() - start)
        start = time.perf_counter()
        with finished_file(path.with_suffix(".plain")) as file:
            file.write(data)
        plain.append(time.perf_counter() - start)
    return median(saved), median(plain)


def _memory(ctx: Context, seq: Sequence, path: Path, model: Path) -> dict[str, int]:
    """KiB of the file that are resident: after loading, after a token, and with a second process, of both together."""
    ctx.kv.truncate(seq, 0)
    before = _rss_kib()
    load_state(ctx, path, seq)
    loaded, grown = resident(os.getpid(), (SUFFIX,))[0], _rss_kib() - before
    ctx.decode([Segment(seq, [1], "last")])
    used = resident(os.getpid(), (SUFFIX,))[0]
    command = [sys.executable, "-m", "scripts.bench.bench_state", str(model), "--reader", str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        theirs = json.loads(other.stdout.readline())
        mine = resident(os.getpid(), (SUFFIX,))
        other.stdin.close()
    return {
        "load_rss_kib": max(loaded // 1024, 0),
        "process_rss_grown_kib": grown,
        "token_rss_kib": used // 1024,
        "two_rss_kib": (mine[0] + theirs[0]) // 1024,
        "two_pss_kib": (mine[1] + theirs[1]) // 1024,
    }


def _read(model: Path, path: Path) -> int:
    """The second process: loads, computes a token, says what it maps, and waits until its input ends."""
    n_tokens = sum(read_state_info(path).n_tokens.values())
    with _context(model, n_tokens) as ctx:
        seq = ctx.new_sequence()
        load_state(ctx, path, seq)
        ctx.decode([Segment(seq, [1], "last")])
        report.result(json.dumps(resident(os.getpid(), (SUFFIX,))))
        sys.stdout.flush()
        sys.stdin.read()
    return 0


def _rss_kib() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024


if __name__ == "__main__":
    sys.exit(guarded(main))
