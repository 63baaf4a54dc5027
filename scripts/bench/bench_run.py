"""Measures what a user of `llmkit run` waits for and what it takes: start, memory, a busy machine, threads.

Owns the checks and their bounds. Each is a row: what, how much, and what is allowed. Speed beside others is
compare_peers.py's.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from llmkit import report
from llmkit.cli import guarded
from llmkit.errors import LlmkitError, UsageError
from scripts.bench.cpu_watch import CpuWatch, process_seconds
from scripts.bench.engines import ROOT, open_llmkit
from scripts.bench.jobs import Job
from scripts.bench.models import REAL, find_model
from scripts.bench.shared_pages import resident

PROMPT = "The capital of France is"
N_GEN = 8
EXIT_NEGATIVE = 2
_BLOCK = 32  # tokens; KV memory is taken in blocks

_OPEN_TOKENIZER = """
import sys, time
start = time.perf_counter()
from llmkit.files.gguf_reader import open_gguf
from llmkit.tokenizer import load_tokenizer
load_tokenizer(open_gguf(sys.argv[1])).encode("a")
print(time.perf_counter() - start)
"""
_KV_BYTES = """
import sys
from llmkit.models.model import load_model
model = load_model(sys.argv[1])
print(model.layout("f16", "f16").block_bytes, model.config.n_vocab)
"""


@dataclass(frozen=True)
class Check:
    """A figure and its bounds: `bound` must hold, `goal` is wanted. `most`: whether less is better."""

    name: str
    value: float
    unit: str
    bound: float | None = None
    goal: float | None = None
    most: bool = True

    @property
    def holds(self) -> bool:
        """Whether the bound is kept."""
        return self.bound is None or (self.value <= self.bound if self.most else self.value >= self.bound)

    def cells(self) -> list[str]:
        """A line of the table."""
        sign = "<=" if self.most else ">="
        limits = [f"{sign} {value:g}" if value is not None else "" for value in (self.bound, self.goal)]
        return [self.name, f"{self.value:.3g}", self.unit, *limits, "" if self.holds else "NO"]


@dataclass(frozen=True)
class Done:
    """A process that ended: seconds of the clock, the most memory it held at once in bytes, what it said."""

    seconds: float
    rss: int
    out: str
    err: str


# A process begins with its parent's peak in ru_maxrss (Linux keeps it through exec), so a small one stands between.
_LAUNCHER = """
import json, os, sys, time
start = time.perf_counter()
_, status, usage = os.wait4(os.posix_spawnp(sys.argv[2], sys.argv[2:], os.environ), 0)
seconds = time.perf_counter() - start
os.write(int(sys.argv[1]), json.dumps([os.waitstatus_to_exitcode(status), seconds, usage.ru_maxrss]).encode())
"""


def run_process(command: list[str], **environment: str) -> Done:
    """Runs it to its end; LlmkitError when it fails. The memory counts mapped files too, shared or not.

    Python may keep the modules' bytecode, as it does for whoever installs llmkit.
    """
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.TemporaryFile() as answer:
        subprocess.run(
            [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(answer.fileno()), *command],
            cwd=ROOT,
            env={**kept, "PYTHONPATH": str(ROOT), **environment},
            stdout=out,
            stderr=err,
            pass_fds=[answer.fileno()],
            check=True,
        )
        texts = [_whole(file) for file in (out, err)]
        code, seconds, max_rss = json.loads(_whole(answer))
    if code:
        raise LlmkitError(f"{' '.join(command)} ended with {code}", texts[1].strip()[-500:])
    # Linux counts in KiB, macOS in bytes.
    return Done(seconds, max_rss * (1 if sys.platform == "darwin" else 1024), *texts)


def _whole(file: Any) -> str:
    file.seek(0)
    return str(file.read().decode(errors="replace"))


def llmkit(*arguments: str) -> list[str]:
    """The command `llmkit ARGUMENTS`."""
    return [sys.executable, "-m", "llmkit", *arguments]


def run_command(model: Path) -> list[str]:
    """`llmkit run -n 8` on a short prompt."""
    return llmkit("run", "-m", str(model), "-p", PROMPT, "-n", str(N_GEN), "--temp", "0")


# -- checks -------------------------------------------------------------------------------------------------------


def check_help() -> Iterator[Check]:
    """`llmkit --help`, the whole process."""
    seconds = median(run_process(llmkit("--help")).seconds for _ in range(5))
    yield Check("--help", seconds, "s", 0.3)


def check_start() -> Iterator[Check]:
    """A second `run -n 8`, the whole process, and the tokenizer of the largest vocabulary."""
    bounds = {"smollm2": (1.5, 0.9), "qwen": (None, 1.2)}
    for name in REAL:
        command = run_command(find_model(name))
        run_process(command)
        seconds = median(run_process(command).seconds for _ in range(3))
        yield Check(f"second run -n {N_GEN}, {name}", seconds, "s", *bounds.get(name, ()))
    with tempfile.TemporaryDirectory(prefix="llmkit-bench-") as cache:
        command = [sys.executable, "-c", _OPEN_TOKENIZER, str(find_model("gemma"))]
        first = float(run_process(command, LLMKIT_CACHE=cache).out)
        yield Check("gemma to a ready tokenizer, first time", first, "s", 2.5)
        later = median(float(run_process(command, LLMKIT_CACHE=cache).out) for _ in range(3))
        yield Check("gemma to a ready tokenizer, later", later, "s", 1.2)


def check_first() -> Iterator[Check]:
    """The first run ever: nothing compiled, nothing packed."""
    with tempfile.TemporaryDirectory(prefix="llmkit-bench-") as cache:
        done = run_process(run_command(find_model("smollm2")), LLMKIT_CACHE=cache)
        n_bytes = sum(path.stat().st_size for path in Path(cache).rglob("*") if path.is_file())
    yield Check("first run ever, smollm2", done.seconds, "s", 45, 30)
    yield Check("... says that it compiles", float("compiling" in done.err), "1: yes", 1, most=False)
    yield Check("... leaves in the cache", n_bytes / 1e6, "MB")


def check_memory() -> Iterator[Check]:
    """The most memory that a second run holds, mapped files included."""
    for name in REAL:
        model = find_model(name)
        command = run_command(model)
        run_process(command)
        rss = run_process(command).rss / 1e6
        block_bytes, n_vocab = map(int, run_process([sys.executable, "-c", _KV_BYTES, str(model)]).out.split())
        n_blocks = -(-(len(PROMPT.split()) * 2 + N_GEN) // _BLOCK)
        file_bytes = model.stat().st_size
        bound = (file_bytes + n_blocks * block_bytes + 300e6 + 1000 * n_vocab) / 1e6
        yield Check(f"memory of a second run, {name} ({file_bytes / 1e6:.0f} MB)", rss, "MB", round(bound))


def check_shared() -> Iterator[Check]:
    """The weights that two processes hold together, against the file: they map the same pages."""
    for name in REAL:
        model = find_model(name)
        with open_llmkit(model, 1) as one, open_llmkit(model, 1) as two:
            for engine in (one, two):
                engine.run([Job("prompt", 8), Job("generate", N_GEN)])
            (alone, first), (_, second) = (resident(engine.pids[0]) for engine in (one, two))
        size = model.stat().st_size
        yield Check(f"weights of two processes to the file, {name}", (first + second) / size, "x", 1.1)
        yield Check(f"... that each maps of them, {name}", alone / size, "x")


def check_busy() -> Iterator[Check]:
    """Decoding beside a process that spins, as a share of the quiet speed."""
    for name in REAL:
        with open_llmkit(find_model(name), 2) as engine:
            job = Job("generate", 32)
            quiet = median(engine.run([job], 3)[0])
            with spinning():
                busy = median(engine.run([job], 3)[0])
        yield Check(
            f"decode beside a spinning process, {name} ({quiet:.0f} t/s quiet)", busy / quiet, "x", 0.5, most=False
        )


@contextmanager
def spinning() -> Iterator[None]:
    """One process that never rests."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        time.sleep(0.3)
        yield
    finally:
        process.kill()
        process.wait()


def check_threads() -> Iterator[Check]:
    """Two threads as a multiple of one."""
    for name in REAL:
        model = find_model(name)
        jobs = [Job("prompt", 256), Job("generate", 32)]
        with open_llmkit(model, 1) as one, open_llmkit(model, 2) as two:
            rates = [(one.run([job], 1)[0] + two.run([job], 1)[0]) for _ in range(3) for job in jobs]
        for i, (job, goal) in enumerate(zip(jobs, (1.8, None), strict=True)):
            alone, both = (median(pair[k] for pair in rates[i::2]) for k in (0, 1))
            text = f"{job.name} with 2 threads to 1, {name} ({alone:.0f} to {both:.0f} t/s)"
            yield Check(text, both / alone, "x", goal=goal, most=False)


def check_idle() -> Iterator[Check]:
    """CPU that an open engine with nothing to do uses."""
    with open_llmkit(find_model("smollm2"), 2) as engine:
        engine.run([Job("generate", 8)])
        time.sleep(0.1)
        before = process_seconds(engine.pids[0])
        time.sleep(1.0)
        yield Check("CPU of an idle engine, 1 s", process_seconds(engine.pids[0]) - before, "s", 0.01)


CHECKS = {
    "help": check_help,
    "start": check_start,
    "memory": check_memory,
    "shared": check_shared,
    "busy": check_busy,
    "threads": check_threads,
    "idle": check_idle,
    "first": check_first,
}


# -- the command --------------------------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Runs the checks that the command line names; the exit code is 2 when a bound is not kept."""
    args = _parser().parse_args(arguments)
    report.set_level(quiet=args.quiet)
    return guarded(lambda: _run(args))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/bench_run", description="Measure start, memory, threads and a busy machine, with their bounds."
    )
    parser.add_argument("checks", nargs="*", metavar="CHECK", help=f"{', '.join(CHECKS)} [all]")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress on stderr")
    return parser


def _run(args: argparse.Namespace) -> int:
    unknown = [name for name in args.checks if name not in CHECKS]
    if unknown:
        raise UsageError(f"there is no check {unknown[0]!r}", f"one of {', '.join(CHECKS)}")
    watch, found = CpuWatch(), list[Check]()
    for name in args.checks or CHECKS:
        report.note(f"{name}: {(CHECKS[name].__doc__ or '').splitlines()[0]}")
        for check in CHECKS[name]():
            report.note(f"  {check.name}: {check.value:.3g} {check.unit}")
            found.append(check)
    others = watch.others()
    if args.json:
        rows = [{**asdict(check), "holds": check.holds} for check in found]
        report.result(json.dumps({"other_cores": others, "checks": rows}, indent=1))
    else:
        report.result_table([check.cells() for check in found], ("what", "value", "", "bound", "goal", ""))
    if others is not None and others > 0.1:
        # What the checks start counts as ours, so this is somebody else's.
        report.warning(f"other processes used {others:.2f} cores on average meanwhile")
    return 0 if all(check.holds for check in found) else EXIT_NEGATIVE


if __name__ == "__main__":
    sys.exit(main())
