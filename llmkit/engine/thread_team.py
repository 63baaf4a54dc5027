"""The engine's threads: they run plans together and use no CPU between them."""

from __future__ import annotations

import os
import threading
import weakref

import numpy as np
import numpy.typing as npt

from llmkit.errors import UsageError
from llmkit.kernels.plan import CONTROL_SIZE, rest, run, stop, work


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


class _Workers:
    """The threads of a team but the caller's, and the memory by which they are told what to do.

    The threads hold this memory and their locks, never the team, which therefore ends when nobody uses it any more.
    """

    def __init__(self, n_threads: int) -> None:
        self.memory = np.zeros(CONTROL_SIZE + 8 * (n_threads + 1) + 8, np.int64)
        self.control = (self.memory.ctypes.data + 63) // 64 * 64
        self.locks = [threading.Lock() for _ in range(1, n_threads)]
        self.threads: list[threading.Thread] = []
        try:
            for i, lock in enumerate(self.locks, start=1):
                lock.acquire()
                arguments = (self.memory, self.control, lock, i, n_threads)
                thread = threading.Thread(target=_serve, args=arguments, daemon=True, name=f"llmkit-{i}")
                thread.start()
                self.threads.append(thread)
        except BaseException as error:
            self.stop()
            if isinstance(error, RuntimeError):
                raise UsageError(f"the system gives no {n_threads} threads: {error}", "ask for fewer (-t)") from error
            raise

    def wake(self) -> None:
        """Lets go whoever sleeps. One that is awake will wake up once for nothing when it next sleeps."""
        for lock in self.locks:
            if lock.locked():
                lock.release()

    def stop(self) -> None:
        """Ends the threads and waits for them."""
        stop(self.control)
        self.wake()
        for thread in self.threads:
            if thread is not threading.current_thread():  # where the garbage collector came to run
                thread.join()


def _serve(memory: npt.NDArray[np.int64], control: int, lock: threading.Lock, worker: int, n_threads: int) -> None:
    """A worker's life; `memory` is what `control` points into."""
    seen = 0
    while (seen := work(control, worker, n_threads, seen)) >= 0:
        lock.acquire()


class ThreadTeam:
    """`n_threads` threads, the caller's included. One plan at a time; a team that nobody refers to ends by itself.

    A plan runs whole or not at all, even where KeyboardInterrupt falls between two lines of this file. After a fork the
    child's team has threads of its own.
    """

    def __init__(self, n_threads: int) -> None:
        self.n_threads = n_threads
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._workers = _Workers(self.n_threads)
        self._stop = weakref.finalize(self, self._workers.stop)

    def run(self, plan: int) -> None:
        """Runs the plan at this address to its end; UsageError on a team that was closed."""
        if not self._stop.alive:
            raise UsageError("the context is closed", "make a new one")
        if self._pid != os.getpid():
            self._start()
        workers = self._workers
        try:
            if not run(workers.control, plan, self.n_threads, 0):
                workers.wake()
                run(workers.control, plan, self.n_threads, 1)
        except BaseException:
            rest(workers.control)
            raise

    def close(self) -> None:
        """Ends the workers; a second time does nothing."""
        self._stop()
