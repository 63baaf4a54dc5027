"""Thousands of sessions and random requests through the engine's thread or a server: right answers, hits, no leak.

Owns what is judged. sessions: every answer has the bits that its prompt gives alone, and the hit rate by token is at
least 0.9 of what a cache without bounds would have. random: memory stays flat, nothing is lost, answers are right.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from llmkit import report
from llmkit.cli import guarded
from llmkit.engine.context import Context
from llmkit.engine.generation.generate import Generation
from llmkit.engine.generation.sampler import Sampler
from llmkit.models.model import load_model
from llmkit.params import ContextParams, GenerateParams, SamplingParams
from scripts.bench.models import find_model
from scripts.bench.soak_engine import N_CTX_SLOT, EngineServer
from scripts.bench.soak_http import ServerProcess
from scripts.bench.soak_loads import Asked, Clients, Sessions, run_random, run_sessions, unbounded_hits

HIT_BOUND = 0.9
GROWTH_BOUND_MB = 32.0
WARM_PART = 0.3  # of the requests, before memory is looked at
EXIT_NEGATIVE = 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2", help="a short name or a file (default: smollm2)")
    parser.add_argument(
        "--http", action="store_true", help="through `llmkit serve` (default: the engine's thread alone)"
    )
    parser.add_argument("--sessions", type=int, default=1000, help="sessions (default: 1000)")
    parser.add_argument("--turns", type=int, default=3, help="turns of each (default: 3)")
    parser.add_argument("--system", type=int, default=512, help="tokens of the system prompt (default: 512)")
    parser.add_argument("--requests", type=int, default=20_000, help="random requests (default: 20000)")
    parser.add_argument("--slots", type=int, default=8, help="texts computed at once (default: 8)")
    parser.add_argument("--cells", type=int, default=65_536, help="tokens that memory holds (default: 65536)")
    parser.add_argument("--check", type=float, default=1.0, help="part of the sessions' answers to check (default: 1)")
    parser.add_argument("--seed", type=int, default=0, help="of all that is random (default: 0)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


class Reference:
    """Computes answers again, each alone and cold. eog_ids: what is never chosen."""

    def __init__(self, ctx: Context, eog_ids: frozenset[int] = frozenset()) -> None:
        self._ctx, self._eog_ids = ctx, eog_ids

    def tokens(self, asked: Asked) -> list[tuple[int, float]]:
        """As many ids and log-probabilities as the client got."""
        if not asked.tokens:
            return []
        seq = self._ctx.new_sequence()
        params = GenerateParams(len(asked.tokens), n_logprobs=0)
        sampler = Sampler(SamplingParams(temp=0, ignore_eos=True), self._eog_ids)
        tokens = list(Generation(self._ctx, seq, asked.prompt, sampler, params))
        self._ctx.free_sequence(seq)
        return [(token.id, token.logprobs.chosen.logprob) for token in tokens if token.logprobs is not None]

    def count_wrong(self, answers: Iterable[Asked]) -> int:
        """How many differ in a bit, failed, or ended early without having been cancelled."""
        n_wrong = 0
        for asked in answers:
            short = asked.outcome == "finished" and len(asked.tokens) < asked.n_predict
            known = asked.outcome in ("finished", "cancelled")
            n_wrong += not known or short or self.tokens(asked) != asked.tokens
        return n_wrong


def soak_sessions(server: Clients, reference: Reference, options: argparse.Namespace) -> dict[str, Any]:
    """Runs the sessions; figures."""
    load, draw = Sessions(options.sessions, options.turns, options.system), random.Random(options.seed)
    report.note(f"{load.n_sessions} sessions of {load.n_turns} turns over {load.n_system} tokens ...")
    began = time.perf_counter()
    done = run_sessions(server, load, draw, 2 * options.slots)
    seconds, counts = time.perf_counter() - began, server.counts()
    chosen = [asked for asked in done if draw.random() < options.check]
    report.note(f"{len(done)} answers in {seconds:.1f} s; computing {len(chosen)} again alone ...")
    return {
        "n_answers": len(done),
        "seconds": round(seconds, 2),
        "n_checked": len(chosen),
        "n_wrong": reference.count_wrong(chosen),
        "hit_rate": round(counts["tokens_hit"] / counts["tokens_asked"], 4),
        "of_unbounded": round(counts["tokens_hit"] / unbounded_hits(done, load), 4),
        **counts,
    }


def soak_random(server: Clients, reference: Reference, options: argparse.Namespace) -> dict[str, Any]:
    """Runs the random requests; figures."""
    draw, held, n_warm = random.Random(options.seed + 1), list[float](), int(WARM_PART * options.requests)
    report.note(f"{options.requests} random requests ...")

    def watch(n_over: int) -> None:
        if n_over >= n_warm and (n_over - n_warm) % max(1, options.requests // 50) == 0:
            held.append(server.held_mb())

    began = time.perf_counter()
    kept = run_random(server, options.requests, draw, 3 * options.slots, watch)
    seconds = time.perf_counter() - began
    return {
        "n_requests": options.requests,
        "seconds": round(seconds, 2),
        "n_checked": len(kept),
        "n_wrong": reference.count_wrong(kept),
        "grown_mb": round(max(held[len(held) // 2 :]) - max(held[: max(1, len(held) // 4)]), 2),
        **{name: server.counts()[name] for name in ("n_cancelled", "n_parked")},
    }


def bounds(result: dict[str, Any]) -> dict[str, bool]:
    """What is kept of what is asked for."""
    sessions, randomly = result["sessions"], result["random"]
    return {
        "all answers right": sessions["n_wrong"] == randomly["n_wrong"] == 0,
        f"hit rate at least {HIT_BOUND} of an unbounded cache's": sessions["of_unbounded"] >= HIT_BOUND,
        f"memory grows by at most {GROWTH_BOUND_MB:g} MB": randomly["grown_mb"] <= GROWTH_BOUND_MB,
        "nothing lost, no slot stuck": result["lost"] == 0,
    }


def main(arguments: list[str] | None = None) -> int:
    """Runs both loads; 2 when a bound is missed."""
    options = _parser().parse_args(arguments)
    path = Path(find_model(options.model))
    model = load_model(path)
    n_vocab = model.config.n_vocab
    server: ServerProcess | EngineServer = (
        ServerProcess(path, model.gguf, n_vocab, options.slots, options.cells)
        if options.http
        else EngineServer(model, options.slots, options.cells)
    )
    with server, Context(model, ContextParams(N_CTX_SLOT)) as ctx:
        reference = Reference(ctx, server.eog_ids)
        result: dict[str, Any] = {"model": model.name, "http": options.http}
        result["sessions"] = soak_sessions(server, reference, options)
        result["random"] = soak_random(server, reference, options)
        result["lost"] = server.lost()
    result["bounds"] = bounds(result)
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
