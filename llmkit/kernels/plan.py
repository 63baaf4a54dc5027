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
    compare_exchange,
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

# Byte offsets in control.
GENERATION, PLAN, N_FINISHED, STOP, WORKERS = 0, 64, 128, 192, 256
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


@entry(types.void(i64, i64))
def publish(control, plan):
    """Hands a plan to the workers that are awake; those asleep must be woken."""
    zero_bytes(arg(plan, COUNTERS), 64 * arg(plan, N_OPS))
    atomic_store(control + PLAN, plan)
    atomic_store(control + N_FINISHED, 0)
    fetch_add(control + GENERATION, 1)


@entry(types.void(i64, i64, i64))
def lead(control, plan, n_threads):
    """The calling thread's share as thread 0; returns when all threads are done."""
    _walk(plan, 0, n_threads)
    n = 0
    while atomic_load(control + N_FINISHED) < n_threads - 1:
        n += 1
        if n < _PAUSES:
            pause(0)
        else:
            yield_core(0)


@entry(i64(i64, i64))
def wake(control, worker):
    """Marks a worker (1 ..) awake; 1 when it was asleep and waits for its lock."""
    return exchange(control + WORKERS + 64 * worker, AWAKE)


@helper
def _next_plan(control, worker, seen):
    """Waits for a generation after `seen`; `seen` itself when the worker is now asleep."""
    state, n = control + WORKERS + 64 * worker, 0
    while atomic_load(control + GENERATION) == seen:
        n += 1
        if n < _PAUSES:
            pause(0)
        elif n < _PAUSES + _IDLE_YIELDS:
            yield_core(0)
        else:
            atomic_store(state, ASLEEP)
            # A plan published just before would not have seen us asleep.
            if atomic_load(control + GENERATION) == seen or compare_exchange(state, ASLEEP, AWAKE) == 0:
                return seen
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
