"""A package index on this machine, to be bad at its job in the ways that the download tests need.

Owns made-up wheels and a server for them on 127.0.0.1. Knows nothing about llmkit but the table's two classes.
"""

import base64
import hashlib
import io
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from llmkit.files.models_table import NamedModel, Wheel


@dataclass
class PackageIndex:
    """What the server does: `files` by name; `cut` ends every download at half; `gate` holds it there until it is set.

    `half_sent` is set as soon as half a file went out; `requests` are the paths asked for so far.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    cut: bool = False
    gate: threading.Event | None = None
    half_sent: threading.Event = field(default_factory=threading.Event)
    requests: list[str] = field(default_factory=list)
    port: int = 0

    @property
    def environ(self) -> dict[str, str]:
        """The variables that make pip and uv use this index and nothing else."""
        url = f"http://127.0.0.1:{self.port}/simple"
        alone = {"PIP_CONFIG_FILE": "/dev/null", "PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": "", "PIP_CONSTRAINT": ""}
        return {**alone, "PIP_INDEX_URL": url, "UV_INDEX_URL": url, "UV_NO_CONFIG": "1", "NO_PROXY": "127.0.0.1"}

    @property
    def n_downloads(self) -> int:
        """How often a wheel was asked for."""
        return sum(path.startswith("/files/") for path in self.requests)


@contextmanager
def serve(index: PackageIndex) -> Iterator[PackageIndex]:
    """Run the index until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            index.requests.append(self.path)
            name = self.path.rstrip("/").rsplit("/", 1)[-1]
            if self.path.startswith("/simple/"):
                stem = name.replace("-", "_") + "-"
                links = "".join(f'<a href="/files/{file}">{file}</a>' for file in index.files if file.startswith(stem))
                self._send(f"<!DOCTYPE html><html><body>{links}</body></html>".encode(), "text/html")
            elif name in index.files:
                self._send(index.files[name], "application/octet-stream")
            else:
                self.send_error(404)

        def _send(self, body: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            half = len(body) // 2 if kind != "text/html" else len(body)
            self.wfile.write(body[:half])
            self.wfile.flush()
            if kind == "text/html":
                return
            index.half_sent.set()
            if index.gate is not None:
                index.gate.wait(60)
            if not index.cut:
                self.wfile.write(body[half:])

        def log_message(self, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *args: object) -> None:
            """A client that was killed is no news."""

    server = Server(("127.0.0.1", 0), Handler)
    index.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield index
    finally:
        if index.gate is not None:
            index.gate.set()
        server.shutdown()
        thread.join()
        server.server_close()


def make_wheel(package: str, members: dict[str, bytes]) -> bytes:
    """A wheel of version 1.0 that pip and uv accept."""
    stem = package.replace("-", "_")
    info = f"{stem}-1.0.dist-info"
    files = {
        **members,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\nRequires-Dist: absent\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: llmkit\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},sha256={_record_hash(body)},{len(body)}\n" for name, body in files.items())
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in files.items():
            archive.writestr(name, body)
    return out.getvalue()


def make_model(index: PackageIndex, name: str, parts: list[bytes], notice: bytes = b"terms") -> NamedModel:
    """Put a model into `index`, one package for each part and a notice in the first; the model's entry for a table."""
    wheels = []
    for i, part in enumerate(parts):
        package = f"{name}-part{i}"
        stem = package.replace("-", "_")
        members = {f"{stem}/data.bin": part}
        notices = ()
        if i == 0:
            members[f"{stem}/TERMS.txt"] = notice
            notices = (f"{stem}/TERMS.txt",)
        body = make_wheel(package, members)
        wheel = Wheel(package, "1.0", hashlib.sha256(body).hexdigest(), len(body), f"{stem}/data.bin", notices)
        index.files[wheel.file_name] = body
        wheels.append(wheel)
    whole = b"".join(parts)
    return NamedModel(
        name=name,
        about="random bytes",
        file_name=f"{name}.gguf",
        n_bytes=len(whole),
        sha256=hashlib.sha256(whole).hexdigest(),
        licence="none",
        source="made up",
        wheels=tuple(wheels),
    )


def _record_hash(body: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(body).digest()).rstrip(b"=").decode()
