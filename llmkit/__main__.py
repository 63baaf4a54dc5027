"""The process `llmkit`, or `python -m llmkit`: runs the command line, and ends without taking everything apart."""

import atexit
import gc
import os
import sys
from contextlib import suppress
from typing import NoReturn

from llmkit.cli import main


def run() -> NoReturn:
    """Runs the command and ends the process with its exit code.

    A start makes a hundred thousand objects that stay, which the collector would go through again and again; and at the
    end the interpreter would free them one by one. Neither helps anyone: a tenth of a second each.
    """
    gc.set_threshold(50_000, 20, 20)
    code = main()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # closed, or nobody reads any more
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    run()
