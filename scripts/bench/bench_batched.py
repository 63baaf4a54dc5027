"""`llmkit batched-bench` beside llama-batched-bench: the same model and options, in turns within one run.

Owns the turns and the table. A turn is a whole process; its figures are those that the program prints, and what others
used of the CPU meanwhile stands beside them.
"""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from llmkit import report
from llmkit.cli import guarded
from llmkit.errors import LlmkitError
from scripts.bench.cpu_watch import CpuWatch
from scripts.bench.engines import ROOT
from scripts.bench.models import find_model
from scripts.bench.peers import LLAMA_CPP

OURS, THEIRS = "llmkit", "llama.cpp"


@dataclass(frozen=True)
class Turn:
    """One run of one program: tokens a second of the prompt and of the generation, and cores that others used."""

    engine: str
    speed_pp: float
    speed_tg: float
    others: float | None


def main() -> int:
    """Measures and shows a line a turn, then how they compare."""
    options = _parser().parse_args()
    model, n_pl = find_model(options.model), options.npl
    binary = options.binary or str(LLAMA_CPP.program("llama-batched-bench"))

    def arguments(n_kv: int) -> list[str]:
        sizes = {"-npp": options.npp, "-ntg": options.ntg, "-npl": n_pl, "-c": n_kv, "-t": options.threads}
        given = [text for option, n in sizes.items() for text in (option, str(n))]
        return ["-m", str(model), *given, "--output-format", "jsonl", *["-pps"] * options.pps]

    n_shared = options.npp * (1 if options.pps else n_pl) + n_pl * options.ntg
    commands = {
        OURS: [sys.executable, "-m", "llmkit", "batched-bench", *arguments(n_shared), "-q"],
        # Without -kvu each sequence has a memory of its own, into which the prompt is copied: its faster way.
        THEIRS: [binary, *arguments(n_pl * (options.npp + options.ntg))],
    }
    environments = {OURS: dict(os.environ), THEIRS: {**os.environ, "LD_LIBRARY_PATH": str(Path(binary).parent)}}
    turn(OURS, commands[OURS], environments[OURS])  # compiles, packs, and brings the files into memory
    turns = []
    for _ in range(options.rounds):
        for engine in (OURS, THEIRS):
            turns.append(turn(engine, commands[engine], environments[engine]))
            report.note(_line(turns[-1]))
    show(turns, as_json=options.json)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/bench_batched", description=__doc__)
    parser.add_argument("model", nargs="?", default="qwen", help="a short name, or a file (default: qwen)")
    parser.add_argument("-npp", type=int, default=1024, help="prompt tokens (1024)")
    parser.add_argument("-ntg", type=int, default=32, help="tokens generated of each sequence (32)")
    parser.add_argument("-npl", type=int, default=8, help="sequences (8)")
    parser.add_argument(
        "--no-pps", dest="pps", action="store_false", help="a prompt for each sequence, not one for all"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("-t", "--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--binary", help="llama-batched-bench; by default the one that scripts/build_peers built")
    parser.add_argument("--json", action="store_true")
    return parser


def turn(engine: str, command: list[str], environment: dict[str, str]) -> Turn:
    """Runs a program to its end; LlmkitError if it gives no row."""
    watch = CpuWatch()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    row = json.loads(lines[-1]) if done.returncode == 0 and lines else {}
    if row.get("speed_tg") is None:
        raise LlmkitError(f"{engine} ended with {done.returncode}: {done.stderr[-500:]}", "run it by hand to see why")
    return Turn(engine, row["speed_pp"], row["speed_tg"], watch.others())


def _line(turn: Turn) -> str:
    others = "" if turn.others is None else f", others used {turn.others:.2f} cores"
    return f"{turn.engine:9}  S_PP {turn.speed_pp:8.2f} t/s  S_TG {turn.speed_tg:8.2f} t/s{others}"


def show(turns: list[Turn], *, as_json: bool) -> None:
    """Medians of both, and the median of what each round's two turns give against each other."""
    groups = [[t for t in turns if t.engine == name] for name in (OURS, THEIRS)]
    pp, tg = (
        median(getattr(a, name) / getattr(b, name) for a, b in zip(*groups, strict=True))
        for name in ("speed_pp", "speed_tg")
    )
    if as_json:
        report.result_json({"turns": [asdict(t) for t in turns], "pp_ratio": pp, "tg_ratio": tg})
        return
    rows = [
        [group[0].engine, *(f"{median(getattr(t, name) for t in group):.2f}" for name in ("speed_pp", "speed_tg"))]
        for group in groups
    ]
    report.result_table(rows, ["engine", "S_PP t/s", "S_TG t/s"])
    report.result(f"{tg:.2f} times llama.cpp's S_TG, {pp:.2f} times its S_PP")


if __name__ == "__main__":
    sys.exit(guarded(main))
