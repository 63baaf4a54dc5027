"""A model behind an http or https address: what its file is called, and where the cache keeps it.

Owns the meaning of such an address, fetches nothing. An address that names the first part of a split model stands for
all parts, which lie beside it.
"""

import hashlib
import re
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from llmkit.errors import UsageError
from llmkit.files.gguf_split import parse_part_name, part_path
from llmkit.files.http_fetch import Source
from llmkit.files.staged_pull import place_of


def is_url(text: str) -> bool:
    """Whether a model's name is an address on the web."""
    return text.startswith(("http://", "https://"))


def url_folder(url: str) -> str:
    """The name of its folder in models/: the host, for people, and a hash of the whole address."""
    host = re.sub(r"[^\w.-]", "-", urlsplit(url).hostname or "")
    return f"url--{host}--{hashlib.sha256(url.encode()).hexdigest()[:16]}"


def url_path(url: str) -> Path:
    """Where the model is once it was pulled."""
    return place_of(url_folder(url)) / _file_name(url)


def url_sources(url: str, sha256: str = "") -> list[Source]:
    """What to fetch, in order. UsageError for an address that cannot be one of a model, or a SHA-256 that is none."""
    sha256 = sha256.lower()
    if sha256 and not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise UsageError("--sha256 takes 64 hexadecimal digits")
    try:
        parts = urlsplit(url)
        usable = bool(parts.hostname) and parts.port != 0 and not re.search(r"[\s\x00-\x1f]", url)
    except ValueError:
        usable = False
    if not usable:
        raise UsageError(f"{url!r} is no address of a file")
    if "@" in parts.netloc:
        raise UsageError("an address with a user name or password in it is not taken", "Such things end up in logs.")
    named = parse_part_name(Path(_file_name(url)))
    if named is None or named.count == 1:
        return [Source(url, _file_name(url), sha256=sha256)]
    if named.number != 1:
        raise UsageError(f"{_file_name(url)} is part {named.number} of {named.count}", "Give the address of the first.")
    if sha256:
        raise UsageError("--sha256 goes with one file, and this model is split into several")
    names = [part_path(named.prefix, number, named.count).name for number in range(1, named.count + 1)]
    folder = parts.path.rpartition("/")[0]
    return [Source(urlunsplit(parts._replace(path=f"{folder}/{quote(name)}")), name) for name in names]


def _file_name(url: str) -> str:
    """The last part of the path, of harmless characters, and with the ending that llmkit goes by."""
    last = re.sub(r"[^\w.+-]", "_", unquote(urlsplit(url).path).rpartition("/")[2]).lstrip(".") or "model"
    return last if last.endswith(".gguf") else f"{last[:200]}.gguf"
