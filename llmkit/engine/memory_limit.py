"""How large a context may be: what the model was trained for, or what memory allows."""

from __future__ import annotations

import os
from collections.abc import Callable

from llmkit.errors import ContextFullError, UsageError
from llmkit.memory.block_pool import BLOCK_CELLS
from llmkit.memory.kv_layout import KvLayout


def free_memory() -> int:
    """Bytes that can be had without swapping: MemAvailable on Linux, else half of all; a cgroup v2 limit counts."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            fields = dict(line.split(":", 1) for line in file)
        available = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return min(available, _cgroup_room(available))


def _cgroup_room(otherwise: int) -> int:
    try:
        with (
            open("/sys/fs/cgroup/memory.max", encoding="ascii") as limit,
            open("/sys/fs/cgroup/memory.current", encoding="ascii") as current,
        ):
            return max(0, int(limit.read()) - int(current.read()))
    except (OSError, ValueError):
        return otherwise


def total_memory() -> int:
    """Bytes of the machine, or what the cgroup v2 allows of them."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as limit:
            return min(total, int(limit.read()))
    except (OSError, ValueError):
        return total


_ALWAYS_ALLOWED = 64 << 20


def check_room(n_bytes: int, what: str) -> None:
    """UsageError when `what` takes more than the free memory: the system would promise it and then end the process."""
    if n_bytes > _ALWAYS_ALLOWED and n_bytes > (free := free_memory()):
        message = f"{what} take {n_bytes / 2**30:.1f} GiB, but {free / 2**30:.1f} GiB of memory are free"
        raise UsageError(message, "ask for fewer at a time")


def choose_n_ctx(
    wanted: int, n_ctx_train: int, layout: KvLayout, n_full: int = 1, bytes_of: Callable[[int], int] | None = None
) -> tuple[int, str]:
    """The context's size in tokens and where it comes from; 0 wants the smaller of training context and memory.

    n_full: how many sequences may have that many. layout: of all layers, as many short sequences would fill them;
    bytes_of: what one sequence of so many tokens takes, where that is less. ContextFullError when the sequences take
    more than the machine's whole memory.
    """
    if wanted > 0:
        n_bytes, total = -(-wanted // BLOCK_CELLS) * layout.block_bytes, total_memory()
        n_bytes = n_full * (bytes_of(wanted) if bytes_of else n_bytes)
        if n_bytes > total:
            for_all = f" in each of {n_full} sequences" if n_full > 1 else ""
            message = (
                f"a context of {wanted} tokens{for_all} takes {n_bytes / 2**30:.1f} GiB for keys and values, "
                f"but the machine has {total / 2**30:.1f} GiB of memory"
            )
            most = total // n_full // layout.block_bytes * BLOCK_CELLS
            raise ContextFullError(message, f"-c {most} would be the most")
        return wanted, "as asked"
    room = free_memory() // 2 // n_full // layout.block_bytes * BLOCK_CELLS
    if room < n_ctx_train:
        return max(BLOCK_CELLS, room), "what half of the free memory holds"
    return n_ctx_train, "the model's training context"
