"""Where compiled code is kept: a folder of the user's cache, named by the hash of all sources that are compiled.

Numba notices no edit of a callee in another file, hence the hash. Owns what happens when the folder is damaged, full or
read-only: code that cannot be loaded is compiled again, code that cannot be kept is used all the same.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba
from numba.core import caching, config
from numba.core.runtime import rtsys

from llmkit.files.cache_dir import cache_root

_PACKAGE = Path(__file__).resolve().parent.parent
_KEEP_SECONDS = 30 * 24 * 3600


def _source_hash() -> str:
    digest = hashlib.sha256(numba.__version__.encode())
    for folder in ("simd", "kernels", "quants"):
        for file in sorted((_PACKAGE / folder).rglob("*.py")):
            digest.update(file.relative_to(_PACKAGE).as_posix().encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _cache_folder() -> Path:
    """The folder for this version's compiled kernels; whether it is there and can be written is not promised."""
    parent = cache_root() / "kernels"
    folder = parent / _source_hash()
    with suppress(OSError):
        if not folder.is_dir():
            folder.mkdir(parents=True)
            _sweep(parent, folder)
    return folder


def _sweep(parent: Path, keep: Path) -> None:
    """Removes other versions' folders that are older than a month."""
    for other in parent.iterdir():
        if other != keep and other.is_dir() and time.time() - other.stat().st_mtime > _KEEP_SECONDS:
            shutil.rmtree(other, ignore_errors=True)


CACHE_FOLDER = _cache_folder()
config.CACHE_DIR = str(CACHE_FOLDER)


def compiled_before() -> bool:
    """Whether any kernel of this version has been compiled on this machine."""
    return any(CACHE_FOLDER.rglob("*.nbi"))


def can_keep() -> bool:
    """Whether what is compiled now will be there next time."""
    return CACHE_FOLDER.is_dir() and os.access(CACHE_FOLDER, os.W_OK)


class _Locator(caching.UserProvidedCacheLocator):
    """Numba's own refuses a folder that cannot be written, though all code may be in it."""

    def ensure_cache_path(self) -> None:
        with suppress(OSError):
            super().ensure_cache_path()


class _CacheImpl(caching.CompileResultCacheImpl):
    _locator_classes = (_Locator,)


class _Files(caching.IndexDataCacheFile):
    """Every file ends with the SHA-256 of the rest: machine code with a wrong bit would end the process."""

    def _dump(self, obj: Any) -> bytes:
        data: bytes = super()._dump(obj)
        return data + hashlib.sha256(data).digest()

    def _load_data(self, name: str) -> Any:
        data = Path(self._data_path(name)).read_bytes()
        if hashlib.sha256(data[:-32]).digest() != data[-32:]:
            raise ValueError("damaged")
        return super()._load_data(name)  # what follows the pickled object is not looked at


class KernelCache(caching.FunctionCache):
    """The kept code of one function; nothing that happens to its files is an error."""

    _impl_class = _CacheImpl

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        self._cache_file = _Files(self._cache_path, self._impl.filename_base, self._impl.locator.get_source_stamp())

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled code, or None.

        Numba's own fills its tables of types and functions first (a third of a second), which only compiling needs;
        code may need the runtime's symbols.
        """
        try:
            rtsys.initialize(target_context)
            return self._load_overload(sig, target_context)
        except Exception:  # a damaged pickle raises anything
            with suppress(OSError):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keeps the code if that can be done."""
        with suppress(OSError):
            super().save_overload(sig, data)
