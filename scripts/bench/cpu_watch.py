"""How much of the CPU others used while we measured: on a shared machine a figure means nothing without it.

Reads Linux's /proc; elsewhere it knows nothing and says so. Time that the host of a virtual machine took counts too.
"""

import os
import resource
from collections.abc import Iterable
from dataclasses import dataclass
from time import monotonic

_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Usage:
    """Seconds since some time in the past: of the clock, of all cores' work, and of our own part in it."""

    clock: float
    busy: float
    own: float


class CpuWatch:
    """Counts from its making. `workers` are our processes that live on; those that ended count by themselves."""

    def __init__(self, workers: Iterable[int] = ()) -> None:
        self._workers = list(workers)
        self._before = self._now()

    def _now(self) -> Usage:
        own = sum(
            usage.ru_utime + usage.ru_stime
            for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        )
        return Usage(monotonic(), busy_seconds(), own + sum(map(process_seconds, self._workers)))

    def others(self) -> float | None:
        """How many cores others used on average since the start; None where that cannot be known."""
        now, before = self._now(), self._before
        if not now.busy:
            return None
        used = (now.busy - before.busy) - (now.own - before.own)
        return max(0.0, used / max(now.clock - before.clock, 1e-6))


def busy_seconds() -> float:
    """Work of all cores since the machine started, the host's thefts included; 0 where /proc does not tell."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            fields = [int(field) for field in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return 0.0
    user, nice, system, _idle, _wait, irq, soft_irq, steal = fields
    return (user + nice + system + irq + soft_irq + steal) / _TICK


def process_seconds(pid: int) -> float:
    """CPU time of a process that runs; 0 when it does not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICK
