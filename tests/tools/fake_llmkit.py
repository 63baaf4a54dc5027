"""`python -m tests.tools.fake_llmkit run ...` is `llmkit run ...` with a fake model that talks slowly and for ever."""

import sys
import time

import pytest

from llmkit.cli import main
from tests.tools.fake_engine import FakeEngine

if __name__ == "__main__":
    engine = FakeEngine(b" and on" * 1000)
    engine.on_decode = lambda: time.sleep(0.01)
    with pytest.MonkeyPatch.context() as patch:
        engine.install(patch)
        code = main(sys.argv[1:])
    sys.exit(code)
