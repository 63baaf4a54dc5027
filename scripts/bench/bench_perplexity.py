"""`llmkit perplexity` beside llama-perplexity: the same model, text and options, in turns within one run.

Owns the turns and the table. A turn is a whole process, its start and the loading of the model included; what others
used of the CPU meanwhile stands beside it.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from llmkit import report
from llmkit.cli import guarded
from llmkit.errors import LlmkitError
from scripts.bench.cpu_watch import CpuWatch
from scripts.bench.engines import ROOT
from scripts.bench.models import find_model
from scripts.bench.peers import LLAMA_CPP

TEXT = "/usr/share/common-licenses/GPL-3"
N_CTX = 512
_PPL = re.compile(r"PPL = ([0-9.]+)")
_LAST = re.compile(r"\[\d+\]([0-9.]+),")


@dataclass(frozen=True)
class Turn:
    """One run of one program: seconds of the clock, of the CPU, its perplexity, and cores that others used."""

    engine: str
    seconds: float
    cpu_seconds: float
    ppl: float
    others: float | None


def main() -> int:
    """Measures and shows a line a turn, then how they compare."""
    options = _parser().parse_args()
    model, n_threads = find_model(options.model), options.threads
    arguments = ["-m", str(model), "-f", options.file, "-c", str(N_CTX), "--chunks", str(options.chunks)]
    arguments += ["-t", str(n_threads)]
    ours = [sys.executable, "-m", "llmkit", "perplexity", *arguments, "-q"]
    binary = options.binary or str(LLAMA_CPP.program("llama-perplexity"))
    environment = {**os.environ, "LD_LIBRARY_PATH": str(Path(binary).parent)}
    _turn("llmkit", ours, None)  # compiles, packs, and brings the files into memory
    turns = []
    for _ in range(options.rounds):
        turns += [_turn("llmkit", ours, None), _turn("llama.cpp", [binary, *arguments], environment)]
        for turn in turns[-2:]:
            report.note(_line(turn))
    _show(turns, options)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/bench_perplexity", description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2", help="a short name, or a file")
    parser.add_argument("-f", "--file", default=TEXT, help=f"the text (default: {TEXT})")
    parser.add_argument("--chunks", type=int, default=12, help=f"chunks of {N_CTX} tokens")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("-t", "--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--binary", help="llama-perplexity; by default the one that scripts/build_peers built")
    parser.add_argument("--json", action="store_true")
    return parser


def _turn(engine: str, command: list[str], environment: dict[str, str] | None) -> Turn:
    """Runs a program to its end. llama-perplexity may lose the end of its output, so both streams are searched."""
    watch, began, before = CpuWatch(), time.perf_counter(), os.times()
    with tempfile.TemporaryFile("w+") as out:
        code = subprocess.run(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, env=environment).returncode
        seconds, after = time.perf_counter() - began, os.times()
        out.seek(0)
        text = out.read()
    found = _PPL.findall(text) or _LAST.findall(text)
    if code or not found:
        raise LlmkitError(f"{engine} ended with {code}: {text[-500:]}", "run it by hand to see why")
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return Turn(engine, seconds, cpu, float(found[-1]), watch.others())


def _line(turn: Turn) -> str:
    others = "" if turn.others is None else f", others used {turn.others:.2f} cores"
    return f"{turn.engine:9}  {turn.seconds:7.2f} s  CPU {turn.cpu_seconds:7.2f} s  PPL {turn.ppl:.4f}{others}"


def _show(turns: list[Turn], options: argparse.Namespace) -> None:
    ours, theirs = ([t for t in turns if t.engine == name] for name in ("llmkit", "llama.cpp"))
    n_tokens = options.chunks * N_CTX
    rows: list[list[Any]] = []
    for group in (ours, theirs):
        seconds = median(t.seconds for t in group)
        cpu = median(t.cpu_seconds for t in group)
        rows.append(
            [group[0].engine, f"{seconds:.2f}", f"{n_tokens / seconds:.1f}", f"{cpu:.2f}", f"{group[0].ppl:.4f}"]
        )
    speed = median(b.seconds / a.seconds for a, b in zip(ours, theirs, strict=True))
    cpu_speed = median(b.cpu_seconds / a.cpu_seconds for a, b in zip(ours, theirs, strict=True))
    difference = ours[0].ppl / theirs[0].ppl - 1
    if options.json:
        report.result_json({"turns": [asdict(t) for t in turns], "speed": speed, "ppl_difference": difference})
        return
    report.result_table(rows, ["engine", "s", "t/s", "CPU s", "PPL"])
    report.result(
        f"{speed:.2f} times llama.cpp's speed, {cpu_speed:.2f} times by CPU seconds; PPL {100 * difference:+.2f} %"
    )


if __name__ == "__main__":
    sys.exit(guarded(main))
