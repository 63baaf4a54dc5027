"""What a file is that is no GGUF: told from its first bytes, so that the message helps.

Owns a table of signatures and nothing else; it never raises and never reads further than it is given.
"""

from typing import NamedTuple


class Finding(NamedTuple):
    """`what` completes "this file is ..."; `hint` says what to do."""

    what: str
    hint: str


_CONVERT = "Convert the model to GGUF first, for example with llama.cpp's convert_hf_to_gguf.py, or fetch a GGUF of it."
_UNPACK = "Unpack it and give the .gguf file that is inside."
_OLD = "It predates GGUF (2023): fetch a newer file of the model."
_OTHER = "Give a file that begins with the letters GGUF."

_SIGNATURES: tuple[tuple[bytes, str, str], ...] = (
    (b"lmgg", "a GGML file from before GGUF", _OLD),
    (b"fmgg", "a GGML file (ggmf) from before GGUF", _OLD),
    (b"tjgg", "a GGML file (ggjt) from before GGUF", _OLD),
    (b"algg", "a GGML adapter (ggla) from before GGUF", _OLD),
    (b"version https://git-lfs", "a Git LFS pointer, not the model itself", "Fetch the real file: `git lfs pull`."),
    (b"\x1f\x8b", "a gzip archive", _UNPACK),
    (b"\x28\xb5\x2f\xfd", "a Zstandard archive", _UNPACK),
    (b"\xfd7zXZ", "an xz archive", _UNPACK),
    (b"BZh", "a bzip2 archive", _UNPACK),
    (b"7z\xbc\xaf", "a 7-Zip archive", _UNPACK),
    (b"\x93NUMPY", "a NumPy array", _CONVERT),
    (b"\x89HDF", "an HDF5 file", _CONVERT),
    (b"\x7fELF", "a program", _OTHER),
    (b"%PDF", "a PDF document", _OTHER),
    (b"\x89PNG", "a picture", _OTHER),
    (b"\xff\xd8\xff", "a picture", _OTHER),
)


def sniff(head: bytes, n_bytes: int) -> Finding:
    """Say what a file is that does not begin with `GGUF`: `head` is its first bytes (512 or more where it has them),
    `n_bytes` its size."""
    if n_bytes == 0:
        return Finding("empty", "The download may have failed: fetch it again.")
    if n_bytes < 8:
        return Finding(f"only {n_bytes} bytes long", "The download was cut off: fetch it again.")
    if head[:4] == b"FUGG":
        return Finding(
            "a big-endian GGUF",
            "Fetch the little-endian file, or convert it with gguf-convert-endian of the gguf package.",
        )
    for signature, what, hint in _SIGNATURES:
        if head.startswith(signature):
            return Finding(what, hint)
    return _container(head, n_bytes) or _text(head) or _unknown(head)


def _container(head: bytes, n_bytes: int) -> Finding | None:
    if head.startswith(b"PK\x03\x04"):
        is_torch = b"data.pkl" in head or b"/version" in head[:128]
        return (
            Finding("a PyTorch checkpoint", _CONVERT)
            if is_torch
            else Finding("a zip archive (or a Python wheel)", _UNPACK)
        )
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return Finding("a Python pickle (an old PyTorch checkpoint)", _CONVERT)
    if int.from_bytes(head[:8], "little") <= n_bytes - 8 and head[8:9] == b"{":
        return Finding("a safetensors file", _CONVERT)
    if head[257:262] == b"ustar":
        return Finding("a tar archive", _UNPACK)
    return None


def _text(head: bytes) -> Finding | None:
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if start.startswith((b"<!doctype html", b"<html", b"<head", b"<!--")):
        return Finding(
            "an HTML page", "The download gave a web page, such as an error or a login: fetch the file itself."
        )
    if start.startswith((b"<?xml", b"<error")):
        return Finding("an XML document", "The download gave an error message: fetch the file itself.")
    if start.startswith((b"{", b"[")):
        return Finding("a JSON text", _OTHER)
    if head and all(32 <= byte < 127 or byte in b"\t\r\n\f\x1b" for byte in head):
        return Finding("a text", _OTHER)
    return None


def _unknown(head: bytes) -> Finding:
    if not any(head):
        return Finding(
            "filled with zeros where a GGUF begins", "The download was reserved but not finished: fetch it again."
        )
    return Finding(f"of an unknown format (it begins with {head[:8].hex(' ')})", _OTHER)
