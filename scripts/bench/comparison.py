"""What a comparison found: medians and ratios, as a table, as JSON, as a page with a plot.

Owns the figures and their looks, and the targets of the project. Knows nothing of how they were measured.
"""

import importlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from tabulate import tabulate

OURS = "llmkit"
LLAMA, IK = "llama.cpp", "ik_llama.cpp"

# What the project wants to reach: (model, test) -> ratio to each peer.
TARGETS: dict[tuple[str, str], dict[str, float]] = {
    ("smollm2", "pp512"): {LLAMA: 2.5, IK: 1.0},
    ("gemma", "pp512"): {LLAMA: 2.5, IK: 1.0},
    ("qwen", "pp512"): {LLAMA: 2.5, IK: 1.0},
    ("smollm2-q8_0", "pp512"): {LLAMA: 2.2, IK: 1.0},
    ("smollm2-q4_0", "pp512"): {LLAMA: 1.5, IK: 1.0},
    ("smollm2-f16", "pp512"): {LLAMA: 1.2, IK: 1.0},
    ("random-q4_k_m", "pp512"): {LLAMA: 1.5, IK: 1.0},
    ("random-q6_k", "pp512"): {LLAMA: 1.5, IK: 1.0},
    ("smollm2", "tg64"): {LLAMA: 1.5, IK: 1.0},
    ("gemma", "tg64"): {LLAMA: 1.3, IK: 1.0},
    ("qwen", "tg64"): {LLAMA: 1.3, IK: 1.0},
}
for _model in ("smollm2", "gemma", "qwen"):
    TARGETS[_model, "tg64 @ d4096"] = {LLAMA: 1.5, IK: 1.0}
    TARGETS[_model, "8x tg16"] = {LLAMA: 2.0, IK: 1.1}


@dataclass
class Row:
    """One test on one model: tokens a second of each engine, a value a repetition."""

    model: str
    test: str
    samples: dict[str, list[float]] = field(default_factory=dict)

    def rate(self, engine: str) -> float | None:
        """The median; None when the engine was not measured."""
        return median(self.samples[engine]) if self.samples.get(engine) else None

    def ratio(self, peer: str) -> float | None:
        """How many times as fast as the peer we are."""
        ours, theirs = self.rate(OURS), self.rate(peer)
        return ours / theirs if ours and theirs else None

    def target(self, peer: str) -> float | None:
        """The ratio that is wanted, where one is."""
        return TARGETS.get((self.model, self.test), {}).get(peer)

    def to_json(self) -> dict[str, Any]:
        peers = [name for name in self.samples if name != OURS]
        return {
            "model": self.model,
            "test": self.test,
            "median": {name: self.rate(name) for name in self.samples},
            "ratio": {name: self.ratio(name) for name in peers},
            "target": {name: self.target(name) for name in peers},
            "samples": self.samples,
        }


@dataclass(frozen=True)
class Turn:
    """When an engine measured: how long, and how many cores others used on average meanwhile; None: not known."""

    model: str
    engine: str
    turn: int
    seconds: float
    other_cores: float | None


@dataclass
class Comparison:
    """All rows, and under which circumstances."""

    machine: dict[str, Any]
    engines: list[str]
    rows: list[Row] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def other_cores(self) -> float | None:
        """How many cores others used in the worst turn; None: not known."""
        return max((turn.other_cores for turn in self.turns if turn.other_cores is not None), default=None)

    def to_json(self) -> dict[str, Any]:
        return {
            "machine": self.machine,
            "engines": self.engines,
            "seconds": round(self.seconds, 1),
            "other_cores": self.other_cores,
            "rows": [row.to_json() for row in self.rows],
            "turns": [asdict(turn) for turn in self.turns],
        }

    def table(self, style: str = "simple") -> str:
        """The figures in columns; a ratio below its target stands beside it."""
        peers = [name for name in self.engines if name != OURS]
        headers = ["model", "test", *self.engines, *(f"to {name}" for name in peers)]
        rows = [
            [row.model, row.test]
            + [_rate(row.rate(name)) for name in self.engines]
            + [_ratio(row.ratio(name), row.target(name)) for name in peers]
            for row in self.rows
        ]
        align = ["left", "left", *["right"] * (len(headers) - 2)]
        return tabulate(rows, headers=headers, tablefmt=style, disable_numparse=True, colalign=align)


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _ratio(value: float | None, target: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" + (f" (of {target:.1f})" if target is not None and value < target else "")


def page(found: Comparison, command: str, plot: str | None) -> str:
    """docs/benchmarks.md: what was measured, how, and how to do it again."""
    m = found.machine
    quiet = "not known" if found.other_cores is None else f"{found.other_cores:.2f} of {m['n_cores']} cores at worst"
    lines = [
        "# Benchmarks",
        "",
        "Written by `scripts/compare_peers --write`; do not edit. Tokens a second, medians; the engines took turns in",
        "one run, on the same file, with the same threads and sizes. `to X` is how many times as fast as X llmkit is;",
        "what is below the project's target has that behind it.",
        "",
        found.table("github"),
        "",
        f"Measured {m['date']} with {m['n_threads']} threads on {m['cpu']}: memory {m['bandwidth_gb_s']:.1f} GB/s,"
        f" {m['int8_gop_s']:.0f} GOP/s int8, {m['f32_gflop_s']:.0f} GFLOP/s f32 ({m['isa']}).",
        f"Other processes used {quiet}.",
        "Versions: " + ", ".join(f"{name} {version}" for name, version in m["versions"].items()) + ".",
        "",
        "```",
        command,
        "```",
        "",
    ]
    return "\n".join([*lines, *([f"![ratios]({plot})", ""] if plot else [])])


def draw(found: Comparison, path: Path) -> bool:
    """The ratios as bars; False when matplotlib is not there (the extra `bench`)."""
    try:
        figures: Any = importlib.import_module("matplotlib.figure")
    except ImportError:
        return False
    peers = [name for name in found.engines if name != OURS]
    figure = figures.Figure(figsize=(8, 0.35 * len(found.rows) * max(len(peers), 1) + 1.5), layout="constrained")
    axes = figure.subplots()
    height = 0.8 / max(len(peers), 1)
    for i, peer in enumerate(peers):
        places = [n + height * (i - (len(peers) - 1) / 2) for n in range(len(found.rows))]
        axes.barh(places, [row.ratio(peer) or 0.0 for row in found.rows], height, label=f"to {peer}")
    axes.set_yticks(range(len(found.rows)), [f"{row.model} {row.test}" for row in found.rows])
    axes.invert_yaxis()
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xlabel("times as fast")
    axes.legend()
    figure.savefig(path)
    return True
