"""The process `llmkit`, or `python -m llmkit`: runs the command line, and ends without taking everything apart."""

import atexit
import gc
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from llmkit.cli import main
from llmkit.shell import signals


def run(main: Callable[[], int] = main) -> NoReturn:
    """Runs the command and ends the process with its exit code.

    A start makes a hundred thousand objects that stay, which the collector would go through again and again; and at the
    end the interpreter would free them one by one. Neither helps anyone: a tenth of a second each. And where Ctrl-C
    came within an `exec` of a text, as in many an import, `python -m` would not end with the exit code, but kill
    itself with SIGINT (CPython's unhandled_keyboard_interrupt).
    """
    gc.set_threshold(50_000, 20, 20)
    code = signals.EXIT_INTERRUPTED
    with signals.as_ctrl_c():
        try:
            code = main()
            atexit._run_exitfuncs()
            for stream in (sys.stdout, sys.stderr):
                with suppress(AttributeError, OSError, ValueError):  # closed, or nobody reads any more
                    stream.flush()
        finally:
            os._exit(signals.exit_code(code))


if __name__ == "__main__":
    run()
