"""Raises KeyboardInterrupt before every single step of the engine's Python code, and looks at what is left.

Run by test_thread_team.py as `python -m tests.engine.interrupts MODEL` in a process of its own, because a fault that it
looks for is a hang. Each round interrupts one decode at one instruction; the context must then hold what it held
before, account for every block, and go on to compute the same bits.
"""

import faulthandler
import sys
import time
from dis import opname
from types import FrameType
from typing import Any

import numpy as np

from llmkit.engine.batch import Segment
from llmkit.engine.context import Context
from llmkit.models.model import load_model
from llmkit.params import ContextParams

TEAM = ("engine/thread_team.py",)
ALL = (*TEAM, "engine/context.py", "memory/kv_cache.py", "memory/block_pool.py", "memory/chain.py")
PROMPT, MORE = [5, 6, 7], list(range(10, 75))
TIMEOUT_S = 60.0


class Interrupter:
    """A trace function that raises at the n-th instruction that it sees in `files`."""

    def __init__(self, n: int, files: tuple[str, ...]) -> None:
        self.n, self.files = n, files

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not frame.f_code.co_filename.endswith(self.files):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        # After a function's last call nothing is interrupted any more: returning is one step with it.
        if event == "opcode" and not opname[frame.f_code.co_code[frame.f_lasti]].startswith("RETURN"):
            self.n -= 1
            if self.n == 0:
                raise KeyboardInterrupt
        return self


def interrupted_decode(ctx: Context, seq: Any, interrupter: Interrupter) -> bool:
    """Whether the decode of MORE was interrupted."""
    sys.settrace(interrupter)
    try:
        ctx.decode([Segment(seq, MORE, "last")])
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


def check(ctx: Context, seq: Any, want: Any, n: int) -> None:
    """Nothing but PROMPT is there, all blocks are accounted for, and MORE still gives `want`."""
    assert seq.tokens.tolist() == PROMPT, f"instruction {n}: {seq.n_tokens} tokens"
    assert ctx.kv.pool.n_free == ctx.kv.pool.n_blocks - 1, f"instruction {n}: {ctx.kv.pool.n_free} blocks are free"
    got = ctx.decode([Segment(seq, MORE, "last")])
    assert (got.view(np.uint32) == want.view(np.uint32)).all(), f"instruction {n}: other bits"
    ctx.kv.truncate(seq, len(PROMPT))


def interrupt_everywhere(ctx: Context, files: tuple[str, ...], pause_s: float) -> int:
    """Interrupts at instruction 1, 2, 3 ... until a decode is through before its turn; how many there were."""
    seq = ctx.new_sequence()
    ctx.decode([Segment(seq, PROMPT, "none")])
    want = np.array(ctx.decode([Segment(seq, MORE, "last")]))
    ctx.kv.truncate(seq, len(PROMPT))
    n = 1
    while interrupted_decode(ctx, seq, Interrupter(n, files)):
        check(ctx, seq, want, n)
        time.sleep(pause_s)
        n += 1
    ctx.free_sequence(seq)
    return n - 1


def main(path: str) -> None:
    """Everywhere, and in the team alone while its workers sleep."""
    faulthandler.dump_traceback_later(TIMEOUT_S, exit=True)
    with Context(load_model(path), ContextParams(n_ctx=128, n_ubatch=64, n_threads=2)) as ctx:
        counts = interrupt_everywhere(ctx, ALL, 0.0), interrupt_everywhere(ctx, TEAM, 0.03)
    sys.stdout.write(f"{counts[0]} {counts[1]}\n")


if __name__ == "__main__":
    main(sys.argv[1])
