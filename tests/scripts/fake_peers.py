"""Peers that cost nothing: small programs in the places where scripts/build_peers puts the real ones."""

import json
import stat
from pathlib import Path
from textwrap import dedent

from scripts.bench.peers import INFO, Peer


def install(peer: Peer, programs: dict[str, str], version: str = "1.2.3") -> Path:
    """Puts the peer into the cache; `programs` are Python scripts by name. Returns the folder of its programs."""
    folder = peer.folder / peer.module / peer.programs
    folder.mkdir(parents=True)
    proof = peer.folder / peer.module / peer.proof
    proof.parent.mkdir(parents=True, exist_ok=True)
    proof.touch()
    for name, source in programs.items():
        write_program(folder / name, source)
    (peer.folder / INFO).write_text(json.dumps({"name": peer.name, "version": version, "folder": str(peer.folder)}))
    return folder


def write_program(path: Path, source: str) -> None:
    """A Python script that can be run."""
    path.write_text("#!/usr/bin/env python3\n" + dedent(source))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
