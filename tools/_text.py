"""Where a text to evaluate comes from: a file or what is piped in, as bytes.

Owns opening and reading. Knows nothing of what the bytes mean.
"""

import sys
from pathlib import Path

from llmkit.errors import UsageError

STDIN = "-"


def read_source(file: str | None) -> tuple[bytes, str]:
    """The bytes of `-f FILE` (- is stdin), or of what is piped in without it, and what to call them in messages."""
    if file is not None and file != STDIN:
        return _read_file(file), file
    if sys.stdin is None:
        raise UsageError("stdin is closed", "Give a text with -f FILE.")
    if file is None and sys.stdin.isatty():
        raise UsageError("there is no text", "Give one with -f FILE, or pipe it in.")
    return sys.stdin.buffer.read(), "stdin"


def _read_file(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{file} cannot be read: {reason}", "Check the path given with -f.") from error
