"""Running a plan: each thread of the team walks the operations, sharing each one's work, without the GIL.

A plan is int64 [PLAN_SIZE]. Control is int64 [CONTROL_SIZE + 8 per worker]; words that different threads write lie on
cache lines of their own.
"""

from __future__ import annotations

from numba import types

from llmkit.kernels.jit import entry, helper, i64
from llmkit.simd.ops import (
    arg,
    atomic_load,
    atomic_store,
    call_kernel,
    exchange,
    fetch_add,
    pause,
    yield_core,
    zero_bytes,
)

# Number of operations; addresses of int64 arrays: kernels, argument blocks, barriers (1: all threads meet before this
# operation), counters (n_ops of them, 64 bytes apart); address of the barrier's two words, 64 bytes apart.
PLAN_FIELDS = ("n_ops", "kernels", "args", "barriers", "counters", "barrier")
N_OPS, KERNELS, ARGS, BARRIERS, COUNTERS, BARRIER = range(6)

# Byte offsets in control. HOLD: 1 while a plan is about to run or runs, when no worker may fall asleep. WORKERS: AWAKE
# or ASLEEP for each, which the worker alone writes.
GENERATION, PLAN, N_FINISHED, STOP, HOLD, WORKERS = 0, 64, 128, 192, 256, 320
AWAKE, ASLEEP = 0, 1
CONTROL_SIZE = WORKERS // 8

_PAUSES = 200  # a partner on another core arrives within these; then the core goes to whoever wants it
_IDLE_YIELDS = 2000  # about a millisecond on an idle machine; then a worker sleeps and costs nothing


@helper
def _wait_while(address, value):
    """Waits until memory holds another value."""
    n = 0
    while atomic_load(address) == value:
        n += 1
        if n < _PAUSES:
            pause(0)
        else:
            yield_core(0)


@helper
def _meet(barrier, n_threads):
    """All threads of the team meet."""
    generation = atomic_load(barrier + 64)
    if fetch_add(barrier, 1) == n_threads - 1:
        atomic_store(barrier, 0)
        atomic_store(barrier + 64, generation + 1)
    else:
        _wait_while(barrier + 64, generation)


@helper
def _walk(plan, thread, n_threads):
    kernels, args, barriers = arg(plan, KERNELS), arg(plan, ARGS), arg(plan, BARRIERS)
    for i in range(arg(plan, N_OPS)):
        if n_threads > 1 and arg(barriers, i) != 0:
            _meet(arg(plan, BARRIER), n_threads)
        call_kernel(arg(kernels, i), arg(args, i), thread, n_threads)


@helper
def _all_awake(control, n_threads, n_yields):
    """Whether every worker is awake, or wakes up while this thread yields `n_yields` times for each."""
    for worker in range(1, n_threads):
        n = 0
        while fetch_add(control + WORKERS + 64 * worker, 0) == ASLEEP:
            if n >= n_yields:
                return False
            n += 1
            yield_core(0)
    return True


@entry(i64(i64, i64, i64, i64))
def run(control, plan, n_threads, n_yields):
    """Runs a plan with all workers, the calling thread as thread 0: 1, and all threads are done.

    0: a worker sleeps and none has seen the plan. Wake them and call again, or call `rest`. So a plan is never left
    half run, wherever the caller is interrupted.
    """
    exchange(control + HOLD, 1)
    if not _all_awake(control, n_threads, n_yields):
        return 0
    zero_bytes(arg(plan, COUNTERS), 64 * arg(plan, N_OPS))
    atomic_store(control + PLAN, plan)
    atomic_store(control + N_FINISHED, 0)
    fetch_add(control + GENERATION, 1)
    _walk(plan, 0, n_threads)
    n = 0
    while atomic_load(control + N_FINISHED) < n_threads - 1:
        n += 1
        if n < _PAUSES:
            pause(0)
        else:
            yield_core(0)
    atomic_store(control + HOLD, 0)
    return 1


@entry(types.void(i64))
def rest(control):
    """Lets the workers fall asleep, after a `run` that gave 0."""
    atomic_store(control + HOLD, 0)


@entry(types.void(i64))
def stop(control):
    """Tells the workers to end; those asleep must be woken."""
    atomic_store(control + STOP, 1)
    fetch_add(control + GENERATION, 1)


@helper
def _next_plan(control, worker, seen):
    """Waits for a generation after `seen`; `seen` itself when the worker is now asleep."""
    state, n = control + WORKERS + 64 * worker, 0
    exchange(state, AWAKE)
    while atomic_load(control + GENERATION) == seen:
        n += 1
        if n < _PAUSES:
            pause(0)
        elif n < _PAUSES + _IDLE_YIELDS or atomic_load(control + HOLD) != 0:
            yield_core(0)
        else:
            # `run` sets the hold and then reads the states, here the state is set and then the hold is read, all by
            # atomic exchanges: so at least one sees the other.
            exchange(state, ASLEEP)
            if fetch_add(control + HOLD, 0) == 0:
                return seen
            exchange(state, AWAKE)
    return atomic_load(control + GENERATION)


@entry(i64(i64, i64, i64, i64))
def work(control, worker, n_threads, seen):
    """A worker's share of plan after plan; returns the last generation seen when it went to sleep, -1 to stop.

    A worker asleep must wait for its lock, which whoever finds it asleep releases.
    """
    while True:
        generation = _next_plan(control, worker, seen)
        if generation == seen:
            return seen
        seen = generation
        if atomic_load(control + STOP) != 0:
            return -1
        _walk(atomic_load(control + PLAN), worker, n_threads)
        fetch_add(control + N_FINISHED, 1)
