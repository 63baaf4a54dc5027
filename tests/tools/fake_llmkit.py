"""`python -m tests.tools.fake_llmkit run ...` is `llmkit run ...` with a fake model that talks slowly and for ever."""

import os
import sys
import time

import pytest

from llmkit.__main__ import main, run
from tests.tools.fake_engine import FakeEngine

if __name__ == "__main__":
    engine = FakeEngine(b" and on" * 1000)

    def decode() -> None:
        if "FAKE_ANNOUNCES" in os.environ:
            sys.stderr.write("decoding\n")
        time.sleep(0.01)

    engine.on_decode = decode
    with pytest.MonkeyPatch.context() as patch:
        engine.install(patch)
        run(lambda: main(sys.argv[1:]))
