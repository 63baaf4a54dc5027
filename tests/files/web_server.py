"""A small web server of a test's own: files with ETags and ranges, redirects, refusals, and faults on demand."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Web:
    """`files` by path; `etag` of all, "" for none; answers end after `cut_after` bytes, so often as `n_cuts` says.

    `seen` holds (path, headers) of every request.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    answers: dict[str, tuple[int, dict[str, str], bytes]] = field(default_factory=dict)
    etag: str = '"1"'
    cut_after: int = 0
    n_cuts: int = 0
    ignores_ranges: bool = False
    ignores_if_range: bool = False
    allowed: Callable[[dict[str, str]], bool] = lambda headers: True
    seen: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    base: str = ""

    def ranges(self) -> list[str]:
        """The ranges that were asked for, "" for the whole file."""
        return [headers.get("range", "") for _, headers in self.seen]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    web: Web

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        web, path = self.web, self.path.partition("?")[0]
        headers = {name.lower(): value for name, value in self.headers.items()}
        web.seen.append((self.path, headers))
        if path in web.answers:
            return self._send(*web.answers[path])
        if path not in web.files:
            return self._send(404, {}, b"no such file")
        if not web.allowed(headers):
            return self._send(401, {}, b"who are you?")
        data, begin = web.files[path], 0
        fits = web.ignores_if_range or headers.get("if-range", web.etag) == web.etag
        if "range" in headers and fits and not web.ignores_ranges:
            begin = int(headers["range"].removeprefix("bytes=").rstrip("-"))
            if begin >= len(data):
                return self._send(416, {}, b"")
        extra = {"ETag": web.etag} if web.etag else {}
        if begin:
            extra["Content-Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
        self._send(206 if begin else 200, extra, data[begin:], cut=web.n_cuts > 0)

    def _send(self, status: int, headers: dict[str, str], body: bytes, cut: bool = False) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if cut:
            self.web.n_cuts -= 1
            body, self.close_connection = body[: self.web.cut_after], True
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def serve_web() -> Iterator[Web]:
    """The server, at `base`, until the block ends."""
    web = Web()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"web": web}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    web.base = f"http://127.0.0.1:{server.server_port}"
    try:
        yield web
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
