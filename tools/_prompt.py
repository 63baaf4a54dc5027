"""Where a prompt comes from: an option, a file, stdin or a pipe; and the escapes of the option.

Owns bytes to text. Knows nothing of tokens. What comes from a file or a pipe is taken verbatim: no newline is stripped
or translated and a backslash stays one, so that any text can be given; only `-p` knows escapes, as it is typed.
"""

import re
import sys
from pathlib import Path

from llmkit.errors import UsageError

STDIN = "-"

_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|[nrt'\"\\])")
_CHARACTERS = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"'": b"'", b'"': b'"', b"\\": b"\\"}


def read_prompt(text: str | None, file: str | None, *, escape: bool) -> str:
    """The prompt given by `-p` (`text`), by `-f` (`file`, - for stdin), or, without either, what is piped in.

    With `-p`, stdin is not touched, so the command can stand in a shell loop that reads it. UsageError if there are two
    prompts or none, if the file cannot be read, or if the bytes are not UTF-8.
    """
    if text is not None and file is not None:
        raise UsageError("there are two prompts, from -p and from -f", "Give one of them.")
    if text is not None:
        return plain_text(text, "-p", escape=escape)
    if file is not None and file != STDIN:
        return _decode(_read_file(file), file)
    if file is None and nothing_piped():
        raise UsageError(
            "there is no prompt", "Give one with -p TEXT or -f FILE, or pipe it in; -f - reads the terminal."
        )
    return read_stdin()


def nothing_piped() -> bool:
    """Whether stdin is closed, or somebody's keyboard."""
    return sys.stdin is None or sys.stdin.isatty()


def plain_text(text: str, option: str, *, escape: bool) -> str:
    """A text typed as an option's value, its escapes replaced. UsageError if it is not UTF-8 then."""
    raw = text.encode("utf-8", "surrogateescape")
    return _decode(unescape(raw) if escape else raw, option)


def read_stdin() -> str:
    """All of stdin, verbatim. UsageError if it is closed or not UTF-8."""
    if sys.stdin is None:
        raise UsageError("stdin is closed")
    return _decode(sys.stdin.buffer.read(), "stdin")


def unescape(raw: bytes) -> bytes:
    r"""Replaces \n \r \t \' \" \\ and \xHH (a byte) as llama.cpp does; a backslash before anything else stays."""
    return _ESCAPE.sub(lambda m: _CHARACTERS.get(m[1]) or bytes.fromhex(m[1][1:].decode()), raw)


def parse_ids(text: str) -> list[int]:
    """Token ids from `1,2,3`, blanks allowed. UsageError names what is no id."""
    ids = []
    for part in text.split(","):
        # Not int() alone: it also takes 1_000, a sign, or another script's digits.
        if not re.fullmatch(r"[0-9]{1,10}", part.strip(), re.ASCII):
            raise UsageError(f"--ids holds {part.strip()!r}, which is no token id", "Give ids as in --ids 1,2,3.")
        ids.append(int(part))
    return ids


def _read_file(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"the prompt file {file} cannot be read: {reason}", "Check the path given with -f.") from error


def _decode(raw: bytes, place: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"the text from {place} is not UTF-8: byte {error.start} is 0x{raw[error.start]:02x}"
        raise UsageError(message, "Convert it first, for example with `iconv -t UTF-8`.") from error
