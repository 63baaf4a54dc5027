"""Running a plan: the threads of a team walk its operations, sharing each one's work, without the GIL.

A plan is int64 [PLAN_SIZE]. Its operations are in groups; those of a group need nothing of each other, those of the
next may need all of it. Control is int64 [CONTROL_SIZE + 8 per worker]; words that different threads write lie on cache
lines of their own.

Threads do not wait for each other, but for work. One word, STATE, says which group of which run is being done, and how
many threads are inside. Whoever takes items of a group's counters is inside; whoever leaves has found all of its
counters run out. So when the last one leaves, each item was taken by somebody who has left: all are done, and the last
one opens the next group. A thread that the system has parked outside a group, or that has not woken up yet, keeps
nobody: when it comes back it joins whatever is open then. Every change of STATE is one atomic read-modify-write that
acquires and releases, so what was written before leaving is seen by all who join a later group, on any memory model;
and as the run's number is in the word, joining fails if anything has changed since the word was read.
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
    now_ns,
    pause,
    store_i64,
    yield_core,
    zero_bytes,
)

# Numbers of operations and of groups; addresses of int64 arrays: kernels, argument blocks, where groups start (one more
# than there are), counters (n_ops of them, 64 bytes apart).
PLAN_FIELDS = ("n_ops", "n_groups", "kernels", "args", "group_starts", "counters")
N_OPS, N_GROUPS, KERNELS, ARGS, GROUP_STARTS, COUNTERS = range(6)

# Byte offsets in control. HOLD: 1 while a plan is about to run or runs, when no worker may fall asleep. WORKERS: for
# each thread AWAKE or ASLEEP, which it alone writes, and its times (see _is_due).
STATE, PLAN, STOP, HOLD, WORKERS = 0, 64, 128, 192, 256
AWAKE, ASLEEP = 0, 1
CONTROL_SIZE = WORKERS // 8

# STATE, from the lowest bit: 16 bits, how many are inside; 16, the group (from 1 on; 0: no plan runs); then the run.
_GROUP, _RUN = 16, 32
_MASK, _LAST_RUN = (1 << 16) - 1, (1 << 31) - 1

_PAUSES = 200  # a partner on another core arrives within these; then the core goes to whoever wants it
_IDLE_YIELDS = 2000  # about a millisecond on an idle machine; then a worker sleeps and costs nothing
_TURN_NS = 1_500_000  # less than a turn that schedulers give, of 2 to 4 ms
_GAP_NS = 1_000_000  # longer than a group of a single token's pass


@helper
def _is_due(times):
    """Whether this thread has had its core for so long that it will soon be taken away if somebody wants it.

    Then it is better given away now, between two groups, than lost while others wait for what this thread has begun.
    times: when the turn began, and when this was last asked; where that is long ago, the turn began anew.
    """
    now = now_ns(0)
    began, asked = arg(times, 0), arg(times, 1)
    store_i64(times + 8, now)
    if now - asked > _GAP_NS:
        store_i64(times, now)
        return False
    return now - began > _TURN_NS


@helper
def _give_core(times):
    yield_core(0)
    now = now_ns(0)
    store_i64(times, now)
    store_i64(times + 8, now)


@helper
def _is_open(state, left):
    """Whether there is a group to join, other than the one left before (run and group)."""
    return (state >> _GROUP) & _MASK != 0 and state >> _GROUP != left


@helper
def _work_through(control, state, thread, n_threads, times):
    """This thread has joined the group of `state`. Does that, and those that it opens itself; the last one left."""
    plan = atomic_load(control + PLAN)
    kernels, args, starts = arg(plan, KERNELS), arg(plan, ARGS), arg(plan, GROUP_STARTS)
    while True:
        group = (state >> _GROUP) & _MASK
        for i in range(arg(starts, group - 1), arg(starts, group)):
            call_kernel(arg(kernels, i), arg(args, i), thread, n_threads)
        due, last = _is_due(times), group == arg(plan, N_GROUPS)
        while True:
            state = atomic_load(control + STATE)
            following = state - 1
            if state & _MASK == 1:  # this thread is the last one
                following = state - 1 - (group << _GROUP)
                if not last:
                    following = state - due + (1 << _GROUP)  # stays inside unless it is to give its core away
            if compare_exchange(control + STATE, state, following):
                break
        if following & _MASK == 0 or state & _MASK > 1:
            return state >> _GROUP
        state = following


@helper
def _join(control, state, left, thread, n_threads, times):
    """Works from the group of `state` on, if that is still open; the last group left."""
    if compare_exchange(control + STATE, state, state + 1):
        left = _work_through(control, state, thread, n_threads, times)
        if _is_due(times):
            _give_core(times)
    return left


@helper
def _all_awake(control, n_threads):
    """Whether every worker is awake."""
    n = 0
    for worker in range(1, n_threads):
        n += fetch_add(control + WORKERS + 64 * worker, 0) == AWAKE
    return n == n_threads - 1


@helper
def _run_alone(plan):
    """All operations, by the only thread."""
    for i in range(arg(plan, N_OPS)):
        call_kernel(arg(arg(plan, KERNELS), i), arg(arg(plan, ARGS), i), 0, 1)


@helper
def _run_together(control, plan, n_threads):
    """This thread begins the plan and sees to it that it ends, whether others come or not."""
    times, n = control + WORKERS + 8, 0
    run = (atomic_load(control + STATE) >> _RUN) % _LAST_RUN + 1
    atomic_store(control + PLAN, plan)
    state, left = (run << _RUN) + (1 << _GROUP), 0
    exchange(control + STATE, state)
    while (state >> _GROUP) & _MASK != 0:
        if _is_open(state, left):
            left, n = _join(control, state, left, 0, n_threads, times), 0
        elif n < _PAUSES:
            n += 1
            pause(0)
        else:
            _give_core(times)
        state = atomic_load(control + STATE)


@entry(i64(i64, i64, i64, i64))
def run(control, plan, n_threads, anyhow):
    """Runs a plan to its end with whoever of the workers comes, the calling thread as thread 0: 1.

    0, and nothing done, if a worker sleeps, unless `anyhow`: wake them and call again, or call `rest`.
    """
    exchange(control + HOLD, 1)
    if not anyhow and not _all_awake(control, n_threads):
        return 0
    zero_bytes(arg(plan, COUNTERS), 64 * arg(plan, N_OPS))  # nobody is inside a group, so nobody takes from them
    if n_threads == 1:
        _run_alone(plan)
    else:
        _run_together(control, plan, n_threads)
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


@entry(i64(i64, i64, i64, i64))
def work(control, worker, n_threads, left):
    """A worker's share of plan after plan; when it falls asleep the last group that it left (0 at first), -1 to stop.

    A worker asleep must wait for its lock, which whoever finds it asleep releases.
    """
    own, n = control + WORKERS + 64 * worker, 0
    exchange(own, AWAKE)
    while atomic_load(control + STOP) == 0:
        state = atomic_load(control + STATE)
        if _is_open(state, left):
            left, n = _join(control, state, left, worker, n_threads, own + 8), 0
            continue
        n += 1
        if n < _PAUSES:
            pause(0)
        elif n < _PAUSES + _IDLE_YIELDS or atomic_load(control + HOLD) != 0:
            _give_core(own + 8)
        else:
            # `run` sets the hold and then reads the states, here the state is set and then the hold is read, all by
            # atomic exchanges: so at least one sees the other.
            exchange(own, ASLEEP)
            if fetch_add(control + HOLD, 0) == 0:
                return left
            exchange(own, AWAKE)
    return -1
