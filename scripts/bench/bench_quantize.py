"""`llmkit quantize` beside llama-quantize: the same source and file type, whole processes in turns within one run.

Owns the cases, the turns, the bounds that llmkit sets itself and the table. Both write a file; the files are compared.
Ends with 2 when a bound is missed or the bytes differ.
"""

import argparse
import filecmp
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from llmkit import report
from llmkit.cli import guarded
from llmkit.errors import LlmkitError
from llmkit.files.gguf_reader import open_gguf
from llmkit.files.imatrix_file import Imatrix, ImatrixEntry, write_imatrix
from scripts.bench.cpu_watch import CpuWatch
from scripts.bench.engines import ROOT
from scripts.bench.make_models import RANDOM_SHAPE
from scripts.bench.models import find_model, made_path
from scripts.bench.peers import LLAMA_CPP
from tests.make_models import make_model

RANDOM_F16 = "random-f16"
SLACK_S = 0.3
K_BOUND, IQ_BOUND = 1.3, 1.5
EXIT_MISSED = 2


@dataclass(frozen=True)
class Case:
    """A source by its short name, a file type, the flags, and how many times llama-quantize's time it may take."""

    model: str
    type: str
    flags: tuple[str, ...] = ()
    bound: float = K_BOUND

    @property
    def name(self) -> str:
        return f"{self.model}:{self.type}"


CASES = (
    Case("smollm2-f16", "Q8_0"),
    Case("smollm2-f16", "Q4_K_M"),
    Case("qwen", "Q4_K_M", ("--allow-requantize",)),
    *(Case(RANDOM_F16, type) for type in ("Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K")),
    *(Case(RANDOM_F16, type, bound=IQ_BOUND) for type in ("IQ4_NL", "IQ4_XS", "IQ3_S")),
    *(Case(RANDOM_F16, type, ("--imatrix",), IQ_BOUND) for type in ("IQ2_XXS", "IQ2_S", "IQ1_S", "IQ3_XXS")),
)


@dataclass(frozen=True)
class Turn:
    """One run of one program: seconds of the clock and of the CPU, peak memory, and cores that others used."""

    engine: str
    seconds: float
    cpu_seconds: float
    peak_bytes: int
    others: float | None


def main() -> int:
    """Measures and shows a line a turn, then how they compare; returns the exit code."""
    options = _parser().parse_args()
    by_name = {case.name: case for case in CASES}
    unknown = [name for name in options.cases if name not in by_name]
    if unknown:
        raise LlmkitError(f"there is no case {unknown[0]!r}", f"one of {', '.join(by_name)}")
    rows = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for name in options.cases or list(by_name)[:3]:
            rows.append(_measure(by_name[name], options, Path(folder)))
    if options.json:
        report.result_json(rows)
    else:
        _show(rows)
    return 0 if all(row["within"] and row["same"] for row in rows) else EXIT_MISSED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/bench_quantize", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"MODEL:TYPE; {', '.join(c.name for c in CASES)}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-t", "--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--folder", help="where the files are written (default: where temporary files go)")
    parser.add_argument("--binary", help="llama-quantize; by default the one that scripts/build_peers built")
    parser.add_argument("--json", action="store_true")
    return parser


def _source(name: str) -> Path:
    """The file of a short name; the random one is made."""
    if name != RANDOM_F16:
        return find_model(name)
    path = made_path(name)
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        make_model(path, **RANDOM_SHAPE, type="F16")
    return path


def _importance(source: Path, path: Path) -> Path:
    """An importance matrix for a model, with random values."""
    rng = np.random.default_rng(1)
    with open_gguf(source) as gguf:
        infos = [i for i in gguf.tensors.values() if i.name.startswith("blk.") and len(i.shape) == 2]
        entries = {
            info.name: ImatrixEntry(rng.random((1, info.shape[0]), np.float32), np.ones(1, np.float32))
            for info in infos
        }
    write_imatrix(path, Imatrix(entries, ["random"], 1, 512))
    return path


def _measure(case: Case, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Alternates the two; a first turn of llmkit compiles and brings the source into memory."""
    source = _source(case.model)
    flags = list(case.flags)
    if "--imatrix" in flags:
        flags.append(str(_importance(source, folder / "imatrix.gguf")))
    binary = options.binary or str(LLAMA_CPP.program("llama-quantize"))
    environment = {**os.environ, "LD_LIBRARY_PATH": str(Path(binary).parent)}
    files = {engine: folder / f"{engine}.gguf" for engine in ("llmkit", "llama.cpp")}
    ours = [sys.executable, "-m", "llmkit", "quantize", "-q"]
    commands = {
        engine: [*start, *flags, str(source), str(files[engine]), case.type, str(options.threads)]
        for engine, start in (("llmkit", ours), ("llama.cpp", [binary]))
    }
    _turn("llmkit", commands["llmkit"], None)
    turns = []
    for _ in range(options.rounds):
        turns += [
            _turn(engine, commands[engine], environment if engine == "llama.cpp" else None) for engine in commands
        ]
        for turn in turns[-2:]:
            report.note(_line(case, turn))
    same = filecmp.cmp(files["llmkit"], files["llama.cpp"], shallow=False)
    for file in files.values():
        file.unlink()
    return _row(case, turns, same)


def _turn(engine: str, command: list[str], environment: dict[str, str] | None) -> Turn:
    """Runs a program to its end; its peak is asked for until it has ended (ru_maxrss would count its parent's)."""
    watch, began, before = CpuWatch(), time.perf_counter(), os.times()
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, env=environment)
        peak = 0
        while process.poll() is None:
            peak = max(peak, _peak(process.pid))
            time.sleep(0.01)
        seconds, after = time.perf_counter() - began, os.times()
        out.seek(0)
        text = out.read()
    if process.returncode:
        raise LlmkitError(f"{engine} ended with {process.returncode}: {text[-500:]}", "run it by hand to see why")
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return Turn(engine, seconds, cpu, peak, watch.others())


def _peak(pid: int) -> int:
    """The most memory that a running process has had, in bytes; 0 where that cannot be known."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    line = next((line for line in status.splitlines() if line.startswith("VmHWM:")), "0 0")
    return 1024 * int(line.split()[1])


def _line(case: Case, turn: Turn) -> str:
    others = "" if turn.others is None else f", others used {turn.others:.2f} cores"
    times = f"{turn.seconds:7.2f} s  CPU {turn.cpu_seconds:7.2f} s  peak {turn.peak_bytes / 1e6:5.0f} MB"
    return f"{case.name:24}  {turn.engine:9}  {times}{others}"


def _row(case: Case, turns: list[Turn], same: bool) -> dict[str, Any]:
    ours, theirs = ([t for t in turns if t.engine == name] for name in ("llmkit", "llama.cpp"))
    seconds, peer = (median(t.seconds for t in group) for group in (ours, theirs))
    allowed = max(case.bound * peer, peer + SLACK_S)
    return {
        "case": case.name,
        "seconds": seconds,
        "peer_seconds": peer,
        "ratio": median(a.seconds / b.seconds for a, b in zip(ours, theirs, strict=True)),
        "cpu_ratio": median(a.cpu_seconds / b.cpu_seconds for a, b in zip(ours, theirs, strict=True)),
        "allowed_seconds": allowed,
        "within": seconds <= allowed,
        "peak_bytes": max(t.peak_bytes for t in ours),
        "peer_peak_bytes": max(t.peak_bytes for t in theirs),
        "same": same,
        "turns": [asdict(t) for t in turns],
    }


def _show(rows: list[dict[str, Any]]) -> None:
    table = [
        [
            row["case"],
            *(f"{row[key]:.2f}" for key in ("seconds", "peer_seconds", "ratio", "cpu_ratio", "allowed_seconds")),
            *(f"{row[key] / 1e6:.0f}" for key in ("peak_bytes", "peer_peak_bytes")),
            *("yes" if row[key] else "NO" for key in ("within", "same")),
        ]
        for row in rows
    ]
    headers = ["case", "s", "llama.cpp s", "ratio", "CPU ratio", "allowed s", "MB", "llama.cpp MB", "within", "same"]
    report.result_table(table, headers)


if __name__ == "__main__":
    sys.exit(guarded(main))
