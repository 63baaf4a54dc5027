"""What lies in the user's cache: one entry for each thing that can be removed by itself, and what it belongs to.

Owns how the entries of each folder are told apart by name and first bytes. Only looks: nothing is created, changed or
removed, and of the files only the headers are read. Links inside a folder are foreign and never followed; a folder of
the cache may itself be a link, to a larger disk.
"""

import hashlib
import json
import os
import re
import stat
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmkit.errors import CacheError
from llmkit.files.cache_dir import CACHE_HINT, cache_root

PACKED_HEADER = struct.Struct("<8sIQQ")  # magic, version, bytes of the file, matrices
PACKED_MAGIC = b"LLMKTILE"

REMADE = ("kernels", "packed", "tokenizers", "fingerprints")
"""The folders whose contents llmkit makes again when they are missing."""
KEPT = ("models", "bench_models", "peers")
"""Those whose contents somebody fetched or built: removed only when they are named."""
FOLDERS = (*REMADE, *KEPT)

FINE, GONE, LEFT, DAMAGED, FOREIGN = "", "model gone", "left over", "damaged", "foreign"
"""States: in order; of a model file that is no longer there; of a killed process; not readable as what its name says;
not made by llmkit."""

_NAMES = {
    "kernels": re.compile(r"[0-9a-f]{16}"),
    "packed": re.compile(r"[0-9a-f]{64}-\d+\.tiles"),
    "tokenizers": re.compile(r"[\w.-]+\.merges"),
    "fingerprints": re.compile(r"[0-9a-f]{32}\.json"),
    "bench_models": re.compile(r"[\w.-]+\.gguf"),
}
_LEFT_OVER = re.compile(r"\.tmp-.*")


@dataclass(frozen=True)
class Entry:
    """`size` in bytes on the disk; `used` is when it was last read or written, in seconds since 1970, as far as the
    file system notes it; `owner` says in words what it belongs to, "" when that is not known."""

    folder: str
    path: Path
    size: int
    used: float
    owner: str = ""
    state: str = FINE


def scan() -> list[Entry]:
    """All entries, by folder and name. CacheError when the cache is there and cannot be read."""
    root = cache_root()
    found: list[Entry] = []
    for path in _children(root):
        if path.name == "locks":
            continue
        if path.name in FOLDERS and path.is_dir():
            found += _scan_folder(path)
        else:
            found.append(_entry("", path, state=FOREIGN))
    return found


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError as exc:
        raise CacheError(f"cannot read the cache folder {folder}: {exc.strerror}", CACHE_HINT) from exc


def _scan_folder(folder: Path) -> Iterator[Entry]:
    owners = _packed_owners(folder.parent / "fingerprints") if folder.name == "packed" else {}
    for path in _children(folder):
        with suppress(FileNotFoundError):  # another process may remove it right now
            if path.is_symlink():
                yield _entry(folder.name, path, state=FOREIGN)
            elif _LEFT_OVER.fullmatch(path.name):
                yield _entry(folder.name, path, state=LEFT)
            elif folder.name in _NAMES and not _NAMES[folder.name].fullmatch(path.name):
                yield _entry(folder.name, path, state=FOREIGN)
            else:
                owner, state = _JUDGES[folder.name](path, owners)
                yield _entry(folder.name, path, owner, state)


def _entry(folder: str, path: Path, owner: str = "", state: str = FINE) -> Entry:
    size, used = _measure(path)
    return Entry(folder, path, size, used, owner, state)


def _measure(path: Path) -> tuple[int, float]:
    """Bytes and last use of a file, or of all files below a folder. What goes away meanwhile counts nothing."""
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        return status.st_size, max(status.st_atime, status.st_mtime)
    size, used = 0, status.st_mtime
    for place, _, names in os.walk(path):
        for name in names:
            with suppress(FileNotFoundError):
                below = os.lstat(os.path.join(place, name))
                size, used = size + below.st_size, max(used, below.st_atime, below.st_mtime)
    return size, used


Owners = dict[str, tuple[str, str]]
"""By the hash that names a packed file: the owner's path, and FINE or GONE."""


def _record(path: Path) -> tuple[list[Any], str] | None:
    """Identity and SHA-256 from a record of models/fingerprint.py, or None when it holds something else."""
    try:
        data = json.loads(path.read_bytes())
        identity, digest = data["identity"], data["sha256"]
        bytes.fromhex(digest)
        sound = len(digest) == 64 and len(identity) == 5 and isinstance(identity[0], str)
        return (identity, digest) if sound else None
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return None


def _is_same_file(identity: list[Any]) -> bool:
    try:
        status = os.stat(identity[0])
    except (OSError, ValueError):
        return False
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns] == identity[1:]


def _packed_owners(fingerprints: Path) -> Owners:
    """From the remembered hashes of model files; those of the parts of split models are put together."""
    from llmkit.files.gguf_split import parse_part_name  # here, as it takes NumPy along

    owners: Owners = {}
    splits: defaultdict[tuple[Path, int], dict[int, tuple[str, bool]]] = defaultdict(dict)
    for file in _children(fingerprints):
        record = _record(file)
        if record is None:
            continue
        identity, digest = record
        path, here = Path(identity[0]), _is_same_file(identity)
        _add_owner(owners, digest, path, here)
        part = parse_part_name(path)
        if part:
            splits[part.prefix, part.count][part.number] = (digest, here)
    for (prefix, count), parts in splits.items():
        if len(parts) == count:
            whole = hashlib.sha256("".join(parts[n][0] for n in range(1, count + 1)).encode()).hexdigest()
            _add_owner(owners, whole, prefix, all(here for _, here in parts.values()))
    return owners


def _add_owner(owners: Owners, digest: str, path: Path, here: bool) -> None:
    """Two files may hold the same model: one that is there counts."""
    if here or digest not in owners:
        owners[digest] = (str(path), FINE if here else GONE)


def _judge_packed(path: Path, owners: Owners) -> tuple[str, str]:
    owner, state = owners.get(path.name[:64], ("", FINE))
    try:
        with path.open("rb") as file:
            magic, _, size, _ = PACKED_HEADER.unpack(file.read(PACKED_HEADER.size))
            sound = magic == PACKED_MAGIC and size == os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        raise
    except (OSError, struct.error):
        sound = False
    return owner, state if sound else DAMAGED


def _judge_fingerprint(path: Path, _: Owners) -> tuple[str, str]:
    record = _record(path)
    if record is None:
        return "", DAMAGED
    return record[0][0], FINE if _is_same_file(record[0]) else GONE


def _judge_model(path: Path, _: Owners) -> tuple[str, str]:
    """A folder of fetched files. With hidden ones alone it is a pull that has not ended, or was given up."""
    if not path.is_dir():
        return "", FOREIGN
    files = [below.relative_to(path) for below in path.rglob("*") if not below.is_dir()]
    shown = [file for file in files if not any(part.startswith(".") for part in file.parts)]
    if any(file.suffix == ".gguf" for file in shown):
        return path.name, FINE
    return path.name, DAMAGED if shown else LEFT


def _judge_plain(is_sound: Callable[[Path], bool]) -> Callable[[Path, Owners], tuple[str, str]]:
    return lambda path, _: ("", FINE if is_sound(path) else DAMAGED)


_JUDGES: dict[str, Callable[[Path, Owners], tuple[str, str]]] = {
    "packed": _judge_packed,
    "fingerprints": _judge_fingerprint,
    "models": _judge_model,
    "kernels": _judge_plain(Path.is_dir),
    "tokenizers": _judge_plain(Path.is_file),
    "bench_models": _judge_plain(Path.is_file),
    "peers": lambda path, _: (path.name, FINE),
}
