"""llama-batched-bench's output, md and jsonl, byte for byte in form; in jsonl our own keys come after its.

Owns the texts. A case that does not fit has a row too, which says what it needs and what there is.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from llmkit.bench.batched import BatchedCase, Room, Times

_TITLES = ("PP", "TG", "B", "N_KV", "T_PP s", "S_PP t/s", "T_TG s", "S_TG t/s", "T s", "S t/s")
_WIDTHS = (5, 6, 4, 6, 8, 8, 8, 8, 8, 8)
_RULE = ("-------", "--------", "------", "--------", *["----------"] * 6)


@dataclass(frozen=True)
class BatchedSettings:
    """What holds for every row; names and numbers are llama.cpp's (flash_attn: 1 on, -1 auto)."""

    n_kv_max: int
    n_batch: int
    n_ubatch: int
    flash_attn: int
    n_threads: int
    shared: bool
    separate: bool


@dataclass(frozen=True)
class BatchedRow:
    """A case that was run, with its times; or that was not, with the room that it lacks."""

    case: BatchedCase
    times: Times | None
    room: Room | None = None

    def figures(self) -> list[float]:
        """t_pp, speed_pp, t_tg, speed_tg, t, speed. Tokens computed a second; the last counts those in the memory."""
        assert self.times is not None
        case, t_pp, t_tg = self.case, self.times.t_pp, self.times.t_tg
        t = t_pp + t_tg
        return [t_pp, case.n_prompt / t_pp, t_tg, case.n_pl * case.n_tg / t_tg, t, case.n_kv / t]


class BatchedPrinter(Protocol):
    """A format. Each method gives whole lines."""

    def header(self, settings: BatchedSettings) -> str: ...

    def row(self, row: BatchedRow) -> str: ...

    def footer(self) -> str: ...


class BatchedMarkdown:
    """A line of settings and a table, with a blank line around each."""

    def header(self, settings: BatchedSettings) -> str:
        s = settings
        values = (
            f"n_kv_max = {s.n_kv_max}, n_batch = {s.n_batch}, n_ubatch = {s.n_ubatch}, flash_attn = {s.flash_attn}, "
            f"is_pp_shared = {s.shared:d}, is_tg_separate = {s.separate:d}, n_gpu_layers = -1, "
            f"n_threads = {s.n_threads}, n_threads_batch = {s.n_threads}"
        )
        titles = " | ".join(title.rjust(width) for title, width in zip(_TITLES, _WIDTHS, strict=True))
        return f"\nllama_batched_bench: {values}\n\n| {titles} |\n|{'|'.join(_RULE)}|\n"

    def row(self, row: BatchedRow) -> str:
        """A case that does not fit has one cell, as wide as those that it has no figures for."""
        case = row.case
        cells = [str(n).rjust(width) for n, width in zip(_numbers(case), _WIDTHS, strict=False)]
        if row.room is not None:
            width = sum(_WIDTHS[4:]) + 3 * 5
            cells.append(f"does not fit: {row.room.needed} tokens needed, {row.room.available} available".ljust(width))
        else:
            cells += [f"{value:8.{2 if i % 2 else 3}f}" for i, value in enumerate(row.figures())]
        return f"| {' | '.join(cells)} |\n"

    def footer(self) -> str:
        return "\n"


class BatchedJsonl:
    """An object a line; figures are null where the case does not fit."""

    def __init__(self) -> None:
        self._settings: dict[str, int] = {}

    def header(self, settings: BatchedSettings) -> str:
        s = settings
        self._settings = {
            "n_kv_max": s.n_kv_max, "n_batch": s.n_batch, "n_ubatch": s.n_ubatch, "flash_attn": s.flash_attn,
            "is_pp_shared": int(s.shared), "n_gpu_layers": -1, "n_threads": s.n_threads,
            "n_threads_batch": s.n_threads,
        }  # fmt: skip
        return ""

    def row(self, row: BatchedRow) -> str:
        values = self._settings | dict(zip(("pp", "tg", "pl", "n_kv"), _numbers(row.case), strict=True))
        texts = {key: json.dumps(value) for key, value in values.items()}
        figures = [f"{value:.6f}" for value in row.figures()] if row.times else ["null"] * 6
        texts |= zip(("t_pp", "speed_pp", "t_tg", "speed_tg", "t", "speed"), figures, strict=True)
        texts |= {
            "is_tg_separate": str(int(row.case.separate)),
            "kv_used_bytes": str(row.times.kv_used) if row.times else "null",
            "kv_peak_bytes": str(row.times.kv_peak) if row.times else "null",
            "n_kv_needed": str(row.room.needed if row.room else row.case.n_kv),
            "fits": json.dumps(row.room is None),
        }
        return "{" + ", ".join(f'"{key}": {text}' for key, text in texts.items()) + "}\n"

    def footer(self) -> str:
        return ""


BATCHED_FORMATS: dict[str, type[BatchedPrinter]] = {"md": BatchedMarkdown, "jsonl": BatchedJsonl}


def _numbers(case: BatchedCase) -> tuple[int, int, int, int]:
    return case.n_pp, case.n_tg, case.n_pl, case.n_kv
