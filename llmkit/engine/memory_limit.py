"""How large a context may be: what the model was trained for, or what memory allows."""

from __future__ import annotations

import os

from llmkit.memory.block_pool import BLOCK_CELLS
from llmkit.memory.kv_cache import KvLayout


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


def choose_n_ctx(wanted: int, n_ctx_train: int, layout: KvLayout) -> tuple[int, str]:
    """The context's size in tokens and where it comes from; 0 wants the smaller of training context and memory."""
    if wanted > 0:
        return wanted, "as asked"
    room = free_memory() // 2 // layout.block_bytes * BLOCK_CELLS
    if room < n_ctx_train:
        return max(BLOCK_CELLS, room), "what half of the free memory holds"
    return n_ctx_train, "the model's training context"
