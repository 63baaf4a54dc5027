"""Thousands of sessions and random requests through the engine's thread: right answers, a good hit rate, no leak.

Owns what is judged. sessions: every answer equals the one that its prompt gives alone, and the hit rate by token is at
least 0.9 of what a cache without bounds would have. random: memory stays flat, nothing is lost, and answers are right.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from llmkit import report
from llmkit.cli import guarded
from llmkit.engine.context import Context
from llmkit.engine.engine_thread import EngineThread
from llmkit.engine.generate import Generation, StopReason
from llmkit.engine.requests import EngineParams, Finished
from llmkit.engine.sampler import Sampler
from llmkit.models.model import load_model
from llmkit.params import ContextParams, GenerateParams
from scripts.bench.models import find_model
from scripts.bench.soak_loads import GREEDY, Asked, Sessions, run_random, run_sessions, unbounded_hits

HIT_BOUND = 0.9
GROWTH_BOUND_MB = 32.0  # of what the process holds, after the first part of the requests
WARM_PART = 0.3
EXIT_NEGATIVE = 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2", help="a short name or a file (default: smollm2)")
    parser.add_argument("--sessions", type=int, default=1000, help="sessions (default: 1000)")
    parser.add_argument("--turns", type=int, default=3, help="turns of each (default: 3)")
    parser.add_argument("--system", type=int, default=512, help="tokens of the system prompt (default: 512)")
    parser.add_argument("--requests", type=int, default=20_000, help="random requests (default: 20000)")
    parser.add_argument("--slots", type=int, default=8, help="texts computed at once (default: 8)")
    parser.add_argument("--cells", type=int, default=65_536, help="tokens that memory holds (default: 65536)")
    parser.add_argument("--check", type=float, default=1.0, help="part of the answers that is checked (default: 1)")
    parser.add_argument("--seed", type=int, default=0, help="of all that is random (default: 0)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def alone(ctx: Context, asked: Asked) -> list[tuple[int, float]]:
    """What the prompt gives by itself, cold: ids and log-probabilities, as many as the client got."""
    if not asked.tokens:
        return []
    seq = ctx.new_sequence()
    params = GenerateParams(len(asked.tokens), n_logprobs=0)
    tokens = list(Generation(ctx, seq, asked.prompt, Sampler(GREEDY), params))
    ctx.free_sequence(seq)
    return [(token.id, token.logprobs.chosen.logprob) for token in tokens if token.logprobs is not None]


def count_wrong(ctx: Context, answers: Iterable[Asked]) -> int:
    """How many differ in a bit, failed, or ended before their time without being asked to."""
    n_wrong = 0
    for asked in answers:
        end = asked.end
        cut = isinstance(end, Finished) and end.stop_reason is not StopReason.INTERRUPTED
        short = cut and len(asked.tokens) < asked.n_predict
        n_wrong += not isinstance(end, Finished) or short or alone(ctx, asked) != asked.tokens
    return n_wrong


def soak_sessions(engine: EngineThread, reference: Context, options: argparse.Namespace) -> dict[str, Any]:
    """Runs the sessions; figures."""
    load, draw = Sessions(options.sessions, options.turns, options.system), random.Random(options.seed)
    report.note(f"{load.n_sessions} sessions of {load.n_turns} turns over {load.n_system} tokens ...")
    began = time.perf_counter()
    done = run_sessions(engine, load, draw, 2 * options.slots)
    seconds, counters = time.perf_counter() - began, engine.counters()
    report.note(f"{len(done)} answers in {seconds:.1f} s; computing them again alone ...")
    chosen = [asked for asked in done if draw.random() < options.check]
    best = unbounded_hits(done, load)
    return {
        "n_answers": len(done),
        "seconds": round(seconds, 2),
        "n_checked": len(chosen),
        "n_wrong": count_wrong(reference, chosen),
        "tokens_asked": counters.tokens_asked,
        "tokens_hit": counters.tokens_hit,
        "hit_rate": round(counters.tokens_hit / counters.tokens_asked, 4),
        "of_unbounded": round(counters.tokens_hit / best, 4),
        "n_evicted": counters.n_evicted,
        "n_parked": counters.n_parked,
    }


def soak_random(engine: EngineThread, reference: Context, options: argparse.Namespace) -> dict[str, Any]:
    """Runs the random requests; figures. Memory is what the process holds apart from the cells."""
    draw, held = random.Random(options.seed + 1), list[float]()
    report.note(f"{options.requests} random requests ...")
    n_warm = int(WARM_PART * options.requests)

    def watch(n_over: int) -> None:
        if n_over >= n_warm and (n_over - n_warm) % max(1, options.requests // 50) == 0:
            held.append(_resident_mb() - _cells_mb(engine))

    began = time.perf_counter()
    kept = run_random(engine, options.requests, draw, 3 * options.slots, watch)
    seconds = time.perf_counter() - began
    return {
        "n_requests": options.requests,
        "seconds": round(seconds, 2),
        "n_checked": len(kept),
        "n_wrong": count_wrong(reference, kept),
        "grown_mb": round(max(held[len(held) // 2 :]) - max(held[: max(1, len(held) // 4)]), 2),
        "n_cancelled": engine.counters().n_cancelled,
        "n_parked": engine.counters().n_parked,
    }


def _resident_mb() -> float:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def _cells_mb(engine: EngineThread) -> float:
    """What was committed for cells, which is bounded from the start."""
    return engine.ctx.memory.usage().bytes_peak / 1e6


def lost_blocks(engine: EngineThread) -> int:
    """Blocks that nobody gives back when all requests are through and the cache is empty."""

    def clear(ctx: Context, tree: Any) -> int:
        tree.clear()
        return sum(pool.n_used for pool in ctx.kv.pools)

    return int(engine.call(clear).result())


def main(arguments: list[str] | None = None) -> int:
    """Runs both loads; 2 when a bound is missed."""
    options = _parser().parse_args(arguments)
    model = load_model(Path(find_model(options.model)))
    params = ContextParams(options.cells, n_seq_max=options.slots)
    result: dict[str, Any] = {"model": model.name}
    with Context(model, params) as ctx, Context(model, ContextParams(4096)) as reference:
        engine_params = EngineParams(options.slots, n_ctx_slot=4096, n_queue=4 * options.slots)
        with EngineThread(ctx, None, engine_params) as engine:
            result["sessions"] = soak_sessions(engine, reference, options)
            result["random"] = soak_random(engine, reference, options)
            result["lost_blocks"] = lost_blocks(engine)
            result["busy_slots"] = sum(slot.is_processing for slot in engine.slots())
    sessions, randomly = result["sessions"], result["random"]
    result["bounds"] = {
        "all answers right": sessions["n_wrong"] == randomly["n_wrong"] == 0,
        f"hit rate at least {HIT_BOUND} of an unbounded cache's": sessions["of_unbounded"] >= HIT_BOUND,
        f"memory grows by at most {GROWTH_BOUND_MB:g} MB": randomly["grown_mb"] <= GROWTH_BOUND_MB,
        "no block lost, no slot stuck": result["lost_blocks"] == result["busy_slots"] == 0,
    }
    _show(result, options.json)
    return 0 if all(result["bounds"].values()) else EXIT_NEGATIVE


def _show(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        report.result_json(result)
        return
    for part in ("sessions", "random"):
        report.result(f"{part}: " + ", ".join(f"{name} {value}" for name, value in result[part].items()))
    for bound, kept in result["bounds"].items():
        report.result(f"{'ok    ' if kept else 'MISSED'} {bound}")


if __name__ == "__main__":
    raise SystemExit(guarded(main))
