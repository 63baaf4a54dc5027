"""Measures llmkit, llama.cpp and, when it is built, ik_llama.cpp in turns, in one run on the same files.

Alone a figure says little, and figures from different hours less: what counts are the ratios of medians. Says when
others used the CPU meanwhile.
"""

import argparse
import os
import re
import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from llmkit import __version__, report
from llmkit.bench.machine import cpu_name, measure_ceilings
from llmkit.cli import guarded
from llmkit.engine.thread_team import default_threads
from llmkit.errors import UsageError
from scripts.bench.comparison import OURS, Comparison, Row, Turn, draw, page
from scripts.bench.cpu_watch import CpuWatch
from scripts.bench.engines import ROOT, Engine, open_engines
from scripts.bench.jobs import Job
from scripts.bench.models import GROUPS, NAMES, REAL, expanded, find_model
from scripts.bench.peers import IK_LLAMA_CPP, LLAMA_CPP_AVX2, LOWERED, PEERS

TESTS = "pp512,tg64,8xtg16"
QUIET_CORES = 0.1  # that others may use before it is worth a warning
_TEST = re.compile(r"(?:(\d+)x)?(pp|tg)(\d+)(?:@d(\d+))?")
_TOGETHER_PROMPT = 16  # tokens in each sequence before they are decoded together


def main(arguments: list[str] | None = None) -> int:
    """Compares as the command line says; returns the exit code."""
    args = _parser().parse_args(arguments)
    report.set_level(quiet=args.quiet)
    return guarded(lambda: _run(args))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/compare_peers",
        description="Measure llmkit beside llama.cpp and ik_llama.cpp, in turns. Alone on the machine, or not at all.",
    )
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", help=f"a file or one of {', '.join((*NAMES, *GROUPS))} [{' '.join(REAL)}]"
    )
    parser.add_argument("--tests", default=TESTS, help=f"list of pp512, tg64, tg64@d4096, 8xtg16 [{TESTS}]")
    parser.add_argument("--rounds", type=int, default=2, help="turns that each engine gets [2]")
    parser.add_argument("--retries", type=int, default=0, help="take a turn again that others disturbed, so often [0]")
    parser.add_argument("-t", "--threads", type=int, default=0, help="threads [all cores]")
    parser.add_argument("--engines", help=f"list of {OURS}, {', '.join(PEERS)} [those that are built]")
    parser.add_argument(
        "--ik-repack", action="store_true", help="let ik_llama.cpp repack the weights when it loads them"
    )
    parser.add_argument(
        "--isa", choices=["native", "avx2"], default="native", help="compile ours for this, against a peer built so"
    )
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md and its plot")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress on stderr")
    return parser


def _run(args: argparse.Namespace) -> int:
    jobs = [parse_test(text) for text in args.tests.split(",")]
    isa = None if args.isa == "native" else args.isa
    engines = _engines(args.engines, isa)
    n_threads = args.threads or default_threads()
    if args.rounds < 1 or n_threads < 1 or args.retries < 0:
        raise UsageError("--rounds and --threads are at least 1, --retries at least 0")
    files = {Path(name).name: find_model(name) for name in expanded(args.models) or REAL}
    start = time.monotonic()
    found = Comparison(_machine(n_threads, engines), engines)
    for name, path in files.items():
        with open_engines(path, n_threads, engines, args.ik_repack, isa) as opened:
            rows, turns = compare(name, opened, jobs, args.rounds, args.retries)
        found.rows += rows
        found.turns += turns
    found.seconds = time.monotonic() - start
    _show(found, args)
    return 0


def parse_test(text: str) -> Job:
    """`pp512`, `tg64`, `tg64@d4096` (after 4096 tokens), `8xtg32` (8 sequences together); UsageError otherwise."""
    parts = _TEST.fullmatch(text.strip())
    if not parts or int(parts[3]) < 1 or (parts[1] and (parts[2] == "pp" or parts[4] or int(parts[1]) < 1)):
        raise UsageError(f"there is no test {text!r}", "for example pp512, tg64, tg64@d4096, 8xtg16")
    if parts[1]:
        return Job("together", int(parts[3]), n_sequences=int(parts[1]), n_prompt=_TOGETHER_PROMPT)
    return Job("prompt" if parts[2] == "pp" else "generate", int(parts[3]), depth=int(parts[4] or 0))


def _engines(text: str | None, isa: str | None = None) -> list[str]:
    """The engines asked for, else those that are here and compiled for as much."""
    known = [OURS, *PEERS]
    if text is None:
        if isa is not None:
            return [OURS, LLAMA_CPP_AVX2.name]
        return [OURS, *(name for name, peer in PEERS.items() if peer.is_built and name not in LOWERED)]
    names = text.split(",")
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(f"there is no engine {unknown[0]!r}", f"one of {', '.join(known)}")
    return names


def _machine(n_threads: int, engines: list[str]) -> dict[str, Any]:
    versions = {name: __version__ if name == OURS else PEERS[name].info()["version"] for name in engines}
    return {
        "cpu": cpu_name(),
        "n_cores": os.cpu_count(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "versions": versions,
        **asdict(measure_ceilings(n_threads)),
    }


def compare(
    model: str, engines: list[Engine], jobs: list[Job], rounds: int, retries: int = 0
) -> tuple[list[Row], list[Turn]]:
    """The rows of one model, and who had a turn when, with what others did to the CPU meanwhile.

    A turn that others disturbed is forgotten and taken again, up to `retries` times; the last one counts.
    """
    rows = {job: Row(model, job.name, {engine.name: [] for engine in engines}) for job in jobs}
    turns = []
    with report.progress(model, rounds * len(engines), "turn") as bar:
        for turn in range(rounds):
            # Whoever comes first meets a cooler machine: each is first in its turn.
            for engine in engines[turn % len(engines) :] + engines[: turn % len(engines)]:
                for left in reversed(range(retries + 1)):
                    start, watch = time.monotonic(), CpuWatch(engine_pids(engines))
                    found = _turn(engine, jobs, turn, rounds)
                    others = watch.others()
                    if left == 0 or others is None or others <= QUIET_CORES:
                        break
                for job, rates in found:
                    rows[job].samples[engine.name] += rates
                turns.append(Turn(model, engine.name, turn, time.monotonic() - start, others))
                bar.update(1)
    return list(rows.values()), turns


def engine_pids(engines: list[Engine]) -> list[int]:
    """Processes that are ours."""
    return [pid for engine in engines for pid in engine.pids]


def _turn(engine: Engine, jobs: list[Job], turn: int, rounds: int) -> list[tuple[Job, list[float]]]:
    """One repetition of each job. llama-bench fills a depth anew in each process, so all its repetitions come at once,
    in the middle of the others'.
    """
    once = {job for job in jobs if job.depth and engine.name not in (OURS, IK_LLAMA_CPP.name)}
    now = [job for job in jobs if job not in once]
    found = list(zip(now, engine.run(now), strict=True)) if now else []
    if once and turn == rounds // 2:
        deep = [job for job in jobs if job in once]
        found += zip(deep, engine.run(deep, rounds), strict=True)
    return found


def _show(found: Comparison, args: argparse.Namespace) -> None:
    if args.json:
        report.result_json(found.to_json())
    else:
        report.result(found.table())
    report.note(f"{found.seconds:.0f} s, {args.rounds} rounds")
    if found.other_cores is None:
        report.warning("what else ran meanwhile is not known here")
    elif found.other_cores > QUIET_CORES:
        report.warning(f"other processes used {found.other_cores:.2f} cores meanwhile: the figures mean little")
    if args.write:
        _write(found, args)


def _write(found: Comparison, args: argparse.Namespace) -> None:
    docs = ROOT / "docs"
    drawn = draw(found, docs / "benchmarks.svg")
    if not drawn:
        report.note("no plot: matplotlib is not installed (pip install 'llmkit[bench]')")
    models = " ".join(Path(name).name for name in args.models)
    options = f"--tests {args.tests} --rounds {args.rounds} -t {found.machine['n_threads']}"
    command = " ".join(f"scripts/compare_peers {models} {options}".split())
    text = page(found, command, "benchmarks.svg" if drawn else None)
    (docs / "benchmarks.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
