"""Adding importance matrices to each other, and the refusal of those that are not of one model.

Owns what may be added. Knows nothing of models: names and sizes of entries are compared with each other.
"""

from collections.abc import Sequence

import numpy as np

from ..errors import ImatrixError
from .gguf_cursor import shown
from .imatrix_file import Imatrix, ImatrixEntry, read_imatrix

_MAY_LACK = "output.weight"  # only there with --process-output
_LARGEST = np.finfo(np.float32).max
_OTHER_MODEL = "All must have been made with one model."


def read_sums(path: str, chunk_size: int) -> Imatrix:
    """A file's sums, in rows: a legacy file's are in calls, each of which stands for chunk_size rows.

    ImatrixError for values that no sums of squares or no counts can be, and what `read_imatrix` raises.
    """
    imatrix = read_imatrix(path)
    for name, entry in imatrix.entries.items():
        if not all(np.isfinite(values).all() and (values >= 0).all() for values in (entry.sums, entry.counts)):
            message = f"{shown(path, 300)}: {shown(name)} holds NaN, infinity or what is below 0"
            raise ImatrixError(message, "Make it again.")
    if not imatrix.is_legacy:
        return imatrix
    factor = np.float32(chunk_size)
    for name, entry in imatrix.entries.items():
        if entry.sums.max(initial=0.0) > _LARGEST / factor:
            raise ImatrixError(f"{shown(path, 300)}: {shown(name)} holds sums that are too large", "Make it again.")
    entries = {name: ImatrixEntry(e.sums * factor, e.counts * factor) for name, e in imatrix.entries.items()}
    return Imatrix(entries, imatrix.datasets, imatrix.n_chunks, 0, is_legacy=True)


def add_up(parts: Sequence[Imatrix], places: Sequence[str], chunk_size: int) -> Imatrix:
    """The sums of all parts, in order; `places` names each in errors. The result has chunks of chunk_size.

    ImatrixError where names or sizes differ. A legacy part may lack entries, and has one matrix where others have one
    for each expert: its calls count for each of them.
    """
    entries: dict[str, ImatrixEntry] = {}
    for i, part in enumerate(parts):
        for name, entry in part.entries.items():
            entries[name] = _sum(name, entries.get(name), entry, places[i])
    for part, place in zip(parts, places, strict=True):
        missing = [name for name in entries if name not in part.entries and name != _MAY_LACK]
        if missing and not part.is_legacy:
            other = _having(missing[0], parts, places)
            raise ImatrixError(f"{shown(place, 300)}: has no {shown(missing[0])}, which {other} has", _OTHER_MODEL)
    datasets = [name for part in parts for name in part.datasets]
    return Imatrix(entries, datasets, sum(part.n_chunks for part in parts), chunk_size)


def _having(name: str, parts: Sequence[Imatrix], places: Sequence[str]) -> str:
    """The first place that has this entry."""
    return next(shown(place, 300) for part, place in zip(parts, places, strict=True) if name in part.entries)


def _sum(name: str, old: ImatrixEntry | None, new: ImatrixEntry, place: str) -> ImatrixEntry:
    """The sum of two entries, in float64 in between."""
    if old is None:
        return new
    if old.sums.size != new.sums.size:
        message = f"{shown(place, 300)}: {shown(name)} has {new.sums.size} values; those before it have {old.sums.size}"
        raise ImatrixError(message, _OTHER_MODEL)
    n_mat = max(old.counts.size, new.counts.size)
    if min(old.counts.size, new.counts.size) not in (1, n_mat):
        message = f"{shown(place, 300)}: {shown(name)} has {new.counts.size} matrices; before it are {old.counts.size}"
        raise ImatrixError(message, _OTHER_MODEL)
    sums = old.sums.astype(np.float64).reshape(n_mat, -1) + new.sums.reshape(n_mat, -1)
    counts = old.counts.astype(np.float64) + new.counts
    if sums.max(initial=0.0) > _LARGEST:
        raise ImatrixError(f"{shown(place, 300)}: the sums of {shown(name)} are too large to add up", "Make it again.")
    return ImatrixEntry(sums.astype(np.float32), counts.astype(np.float32))
