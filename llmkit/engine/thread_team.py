"""The engine's threads: they run plans together and use no CPU between them."""

from __future__ import annotations

import os
import threading

import numpy as np

from llmkit.kernels.plan import CONTROL_SIZE, STOP, lead, publish, wake, work


def default_threads() -> int:
    """The cores that affinity and the control group allow this process."""
    try:
        n = len(os.sched_getaffinity(0))
    except AttributeError:
        n = os.cpu_count() or 1
    return max(1, min(n, _cgroup_cores(n)))


def _cgroup_cores(otherwise: int) -> int:
    """Cores by the CPU quota of cgroup v2, rounded up."""
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:
            quota, period = file.read().split()
        return -(-int(quota) // int(period))
    except (OSError, ValueError):
        return otherwise


class ThreadTeam:
    """`n_threads` threads, the caller's included. One plan at a time."""

    def __init__(self, n_threads: int) -> None:
        self.n_threads = n_threads
        memory = np.zeros(CONTROL_SIZE + 8 * (n_threads + 1) + 8, np.int64)
        self._memory = memory
        self._control = (memory.ctypes.data + 63) // 64 * 64
        self._locks = [threading.Lock() for _ in range(n_threads)]
        self._workers = [threading.Thread(target=self._serve, args=(i,), daemon=True) for i in range(1, n_threads)]
        for lock in self._locks:
            lock.acquire()
        for worker in self._workers:
            worker.start()

    def run(self, plan: int) -> None:
        """Runs the plan at this address to its end."""
        publish(self._control, plan)
        self._wake_all()
        lead(self._control, plan, self.n_threads)

    def _wake_all(self) -> None:
        for i in range(1, self.n_threads):
            if wake(self._control, i):
                self._locks[i].release()

    def _serve(self, worker: int) -> None:
        seen = 0
        while True:
            seen = work(self._control, worker, self.n_threads, seen)
            if seen < 0:
                return
            self._locks[worker].acquire()

    def close(self) -> None:
        """Ends the workers."""
        if not self._workers:
            return
        self._memory[(self._control + STOP - self._memory.ctypes.data) // 8] = 1
        idle = np.zeros(6, np.int64)
        publish(self._control, idle.ctypes.data)
        self._wake_all()
        for worker in self._workers:
            worker.join()
        self._workers = []
