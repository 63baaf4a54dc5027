"""`python -m tests.tools.fake_chat run ...` is `llmkit run ...` with a fake model to talk to: it answers a message in
capitals, with the number of messages; `long` gets an answer without an end.
"""

import sys
import time

import numpy as np
import pytest

from llmkit.__main__ import main, run
from tests.engine.fakes import Row
from tests.tools.fake_engine import EOS, N_VOCAB, FakeEngine


def echo(tokens: list[int]) -> Row:
    """The next token's logits."""
    turns = bytes(token for token in tokens if token < 256).split(b"<|im_start|>")
    said = turns[-1].partition(b"\n")[2]
    asked = turns[-2].partition(b"\n")[2].removesuffix(b"<|im_end|>\n").decode()
    answer = f"{asked.upper()} {len(turns) - 1}".encode()
    if asked == "long":
        answer = b"on and " * 1000
    row = np.zeros(N_VOCAB, dtype=np.float32)
    row[answer[len(said)] if len(said) < len(answer) else EOS] = 9
    return row


if __name__ == "__main__":
    engine = FakeEngine()
    engine.script = echo
    engine.on_decode = lambda: time.sleep(0.002)
    with pytest.MonkeyPatch.context() as patch:
        engine.install(patch)
        run(lambda: main(sys.argv[1:]))
