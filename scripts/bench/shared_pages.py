"""What of a model's files is in memory, and how two processes share it: the kernel's own account (Linux only)."""

import re
from collections.abc import Iterator
from pathlib import Path

from llmkit.errors import UsageError

WEIGHTS = (".gguf", ".tiles")
_MAPPING = re.compile(r"^[0-9a-f]+-[0-9a-f]+ .{4} \S+ \S+ \d+ *(.*)$")
_FIELD = re.compile(r"^(\w+): +(\d+) kB$")


def resident(pid: int, endings: tuple[str, ...] = WEIGHTS) -> tuple[int, int]:
    """Bytes of the mapped files with these endings that are resident: all of them, and the process's part (PSS).

    A page that n processes map counts 1/n in each one's part, so the parts of all add up to what there is.
    """
    smaps = Path(f"/proc/{pid}/smaps")
    if not smaps.exists():
        raise UsageError("shared memory cannot be measured here", "Linux has /proc/PID/smaps")
    rss = pss = 0
    for path, name, kib in _fields(smaps.read_text().splitlines()):
        if path.endswith(endings):
            rss += 1024 * kib * (name == "Rss")
            pss += 1024 * kib * (name == "Pss")
    return rss, pss


def _fields(lines: list[str]) -> Iterator[tuple[str, str, int]]:
    """(path, field, KiB) of each mapping."""
    path = ""
    for line in lines:
        if mapping := _MAPPING.match(line):
            path = mapping[1]
        elif field := _FIELD.match(line):
            yield path, field[1], int(field[2])
