"""CPU time of the prefix tree's operations, without a model, as the number of sessions over one prefix grows."""

import argparse
import time
from collections.abc import Callable

import numpy as np

from llmkit.memory.kinds import memory_layout
from llmkit.memory.kv_cache import KvCache
from llmkit.memory.kv_layout import KvLayout
from llmkit.memory.prefix_tree import PrefixTree
from llmkit.memory.sliding_window import drop_kept
from llmkit.report import result_table

N_VOCAB = 150_000


def prompt(prefix: np.ndarray, n_own: int, number: int) -> np.ndarray:
    """The prefix and what session `number` has of its own."""
    own = np.random.default_rng(number + 1).integers(0, N_VOCAB, n_own)
    return np.concatenate([prefix, own]).astype(np.int32)


def add_session(kv: KvCache, tree: PrefixTree, ids: np.ndarray) -> None:
    """As a request does, but that nothing is computed."""
    seq = kv.new_sequence()
    n = tree.attach(tree.match(ids[:-1], [""]), seq)
    kv.append(seq, ids[n:])
    drop_kept(kv)
    tree.insert(seq, "")
    kv.free(seq)


def cpu_us(do: Callable[[int], object], n: int, rounds: int = 7) -> float:
    """Microseconds of CPU time of a call, the least of some rounds of n."""
    best = float("inf")
    for _ in range(rounds):
        start = time.thread_time()
        for i in range(n):
            do(i)
        best = min(best, (time.thread_time() - start) / n)
    return 1e6 * best


def measured(n_prefix: int, n_own: int, n_sessions: int) -> list[object]:
    """Tokens and sessions, then the times: a hit, a miss, attaching, inserting what is there; blocks, KiB a session."""
    layout = memory_layout((0,), KvLayout(1, 1, 16, "f16", "f16"), 1 << 17, swa_full=True)
    n_blocks = (n_prefix + n_own + 64) // 32 + n_sessions * ((n_prefix % 32 + n_own) // 32 + 2)
    kv = KvCache(layout, 1 << 17, 0, 32 * n_blocks)
    tree, prefix = PrefixTree(kv), np.random.default_rng(0).integers(0, N_VOCAB, n_prefix)
    for i in range(n_sessions):
        add_session(kv, tree, prompt(prefix, n_own, i))
    asked = [prompt(prefix, n_own, i) for i in range(min(n_sessions, 256))]
    n, count = len(asked), 2048
    hit = cpu_us(lambda i: tree.match(asked[i % n], [""]), count)
    miss = cpu_us(lambda i: tree.match(asked[i % n][1:], [""]), count)
    sequences = [kv.new_sequence() for _ in range(n)]

    def attach(i: int) -> None:
        kv.truncate(sequences[i], 0)
        tree.attach(tree.match(asked[i], [""]), sequences[i])

    attached = cpu_us(attach, n)
    inserted = cpu_us(lambda i: tree.insert(sequences[i], ""), n)
    index = (tree.n_bytes - kv.pool.block_bytes * kv.pool.n_used) / n_sessions / 1024
    times = [round(us, 1) for us in (hit, miss, attached, inserted)]
    return [n_prefix, n_own, n_sessions, *times, kv.pool.n_used, round(index, 1)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench_prefix_tree", description=__doc__)
    parser.add_argument("--sessions", default="10,100,1000,2000,10000", help="numbers of sessions")
    parser.add_argument("--prefix", default="512,4096", help="tokens that all have in common")
    parser.add_argument("--own", type=int, default=64, help="tokens of each session's own")
    args = parser.parse_args()
    heads = ["prefix", "own", "sessions", "hit us", "miss us", "attach us", "insert us", "blocks", "tree KiB/session"]
    rows = [
        measured(int(n_prefix), args.own, int(n_sessions))
        for n_prefix in args.prefix.split(",")
        for n_sessions in args.sessions.split(",")
    ]
    result_table(rows, heads)


if __name__ == "__main__":
    main()
