"""Takes entries out of the user's cache: which ones go, and how, while other processes use it.

What a process has mapped or opened stays with it until it ends, so a removed file breaks nothing: the next one makes it
again. Whoever fetches, packs or builds holds a lock meanwhile; what a held lock guards is left. Damaged and foreign
entries are never chosen by a bound.
"""

import os
import secrets
import shutil
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from llmkit.errors import CacheError
from llmkit.files.cache_contents import DAMAGED, FINE, FOREIGN, GONE, LEFT, Entry
from llmkit.files.cache_dir import CACHE_HINT, locked


@dataclass
class Removal:
    """What was removed, and what was left because somebody is at work there."""

    removed: list[Entry] = field(default_factory=list)
    busy: list[Entry] = field(default_factory=list)


def choose_for_prune(
    entries: Iterable[Entry], folders: Sequence[str], now: float, max_bytes: int | None, max_age_s: float | None
) -> list[Entry]:
    """The entries of `folders` that go: what killed processes left and what belongs to models that are gone; what was
    not used for longer than `max_age_s`; then the longest unused ones, until the rest takes at most `max_bytes`."""
    own = [entry for entry in entries if entry.folder in folders and entry.state not in (DAMAGED, FOREIGN)]
    own.sort(key=lambda entry: entry.used)
    chosen = [entry for entry in own if entry.state in (GONE, LEFT)]
    fine = [entry for entry in own if entry.state == FINE]
    if max_age_s is not None:
        chosen += [entry for entry in fine if now - entry.used > max_age_s]
        fine = [entry for entry in fine if now - entry.used <= max_age_s]
    if max_bytes is not None:
        size = sum(entry.size for entry in fine)
        for entry in fine:
            if size <= max_bytes:
                break
            if entry.size:
                chosen.append(entry)
                size -= entry.size
    return chosen


def choose_for_clear(entries: Iterable[Entry], folders: Sequence[str]) -> list[Entry]:
    """All entries of `folders` that bear a name of ours, damaged ones too."""
    return [entry for entry in entries if entry.folder in folders and entry.state != FOREIGN]


def remove_entries(entries: Iterable[Entry]) -> Removal:
    """Remove them. Another process may do the same at the same time: what is gone already is not counted.

    CacheError when the cache cannot be written to.
    """
    done = Removal()
    for entry in entries:
        try:
            with _lock_of(entry):
                if _remove(entry):
                    done.removed.append(entry)
        except _BusyError:
            done.busy.append(entry)
        except OSError as exc:
            raise CacheError(f"cannot remove {entry.path}: {exc.strerror}", CACHE_HINT) from exc
    return done


class _BusyError(Exception):
    """Somebody else holds the lock: not worth waiting for."""


def _give_up() -> None:
    raise _BusyError


def _lock_of(entry: Entry) -> AbstractContextManager[None]:
    if entry.folder == "packed":
        return locked("packed", _give_up)
    if entry.folder == "models":
        return locked(f"model-{entry.path.name}", _give_up)
    if entry.folder == "peers":
        return locked(f"peers-{entry.path.name}", _give_up)
    return nullcontext()


def _remove(entry: Entry) -> bool:
    """Whether it was there. A folder is renamed first: nobody meets one that is half gone."""
    try:
        if entry.path.is_symlink() or not entry.path.is_dir():
            entry.path.unlink()
            return True
        aside = entry.path.with_name(f".tmp-{secrets.token_hex(8)}")
        os.rename(entry.path, aside)
        shutil.rmtree(aside)
        return True
    except FileNotFoundError:
        return False
