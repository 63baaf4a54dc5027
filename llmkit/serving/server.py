"""A running server: its sockets, its signals, loading while it already listens, and an end that finishes what runs.

Owns uvicorn. Knows nothing of what is loaded: `load` brings it.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from llmkit import report
from llmkit.errors import UsageError
from llmkit.serving.app import build_app
from llmkit.serving.served import Served, ServerState
from llmkit.serving.settings import ServeSettings

Deliver = Callable[[Callable[[], None]], object]
Load = Callable[[ExitStack, Deliver], Served]
"""Opens the model and starts its engine, whose events are delivered by calling what is given; the stack ends it all."""

EXIT_INTERRUPTED = 130
MAX_HEADER_BYTES = 65536
HEADER_S = 60.0
KEEP_ALIVE_S = 75
"""Longer than proxies keep theirs: who closes first must not be the one that is asked."""
_AFTER_DRAIN_S = 5


def run_server(settings: ServeSettings, load: Load) -> int:
    """Serves until a signal comes. 0 after SIGTERM, 130 after Ctrl-C; raises what loading raised."""
    state = ServerState(settings)
    sockets = open_sockets(settings)
    config = uvicorn.Config(
        build_app(state), http=_Protocol, ws="none", lifespan="off", loop="auto", log_config=None, access_log=False,
        timeout_keep_alive=KEEP_ALIVE_S, server_header=False,
        timeout_graceful_shutdown=int(settings.drain_timeout_s) + _AFTER_DRAIN_S,
        ssl_keyfile=settings.ssl_key_file, ssl_certfile=settings.ssl_cert_file,
    )  # fmt: skip
    _load_tls(config, settings)
    server = _Server(config, state, load)
    with contextlib.ExitStack() as stack:
        for sock in sockets:
            stack.callback(_close, sock, _file_of(sock))
        report.note(f"listening at {', '.join(_address(sock, settings) for sock in sockets)}")
        server.run(sockets=sockets)
    if server.failure is not None:
        raise server.failure
    return EXIT_INTERRUPTED if server.signal == signal.SIGINT else 0


class _Server(uvicorn.Server):
    """Loads the model in a thread of its own once it listens; at the end lets the engine finish first."""

    def __init__(self, config: uvicorn.Config, state: ServerState, load: Load) -> None:
        super().__init__(config)
        self.state, self._load = state, load
        self.failure: BaseException | None = None
        self.signal = 0
        self._stack = ExitStack()
        self._loader: threading.Thread | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        loop = asyncio.get_running_loop()
        self._loader = threading.Thread(target=self._load_all, args=(loop,), name="llmkit-load", daemon=True)
        self._loader.start()

    def _load_all(self, loop: asyncio.AbstractEventLoop) -> None:
        def deliver(function: Callable[[], None]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody is left to be told
                loop.call_soon_threadsafe(function)

        try:
            served = self._load(self._stack, deliver)
        except BaseException as error:
            self.failure, self.should_exit = error, True
            return
        self.state.served = served
        report.note(f"ready: {served.name}, {served.n_slots} slots of {served.n_ctx} tokens")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.state.draining = True
        loop, served = asyncio.get_running_loop(), self.state.served
        drained = None
        if served is not None:
            timeout_s = 0.0 if self.force_exit else self.state.settings.drain_timeout_s
            drained = loop.run_in_executor(None, served.engine.drain, timeout_s)
        await super().shutdown(sockets)
        if served is not None and self.force_exit:  # the second signal: what is drained is waited for no longer
            await loop.run_in_executor(None, served.engine.drain, 0.0)
        if drained is not None and not await drained:
            report.warning("what still ran was ended")
        if self._loader is not None:
            await loop.run_in_executor(None, self._loader.join)
        await loop.run_in_executor(None, self._stack.close)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn's raises the signal again at the end; here the exit code tells."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal ends it when all is answered, the second at once."""
        if self.should_exit:
            self.force_exit = True
        else:
            self.signal, self.should_exit = sig, True
            report.note("ending: what runs is finished first; once more ends it at once")


class _Protocol(HttpToolsProtocol):
    """uvicorn's, with bounds for the headers: their size, and the time until they are there."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._n_header_bytes = 0
        self._in_headers = True
        self._header_timer = self.loop.call_later(HEADER_S, self._too_slow)

    def _too_slow(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._header_timer.cancel()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._n_header_bytes, self._in_headers = 0, True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_headers = False
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_headers and not self.transport.is_closing():
            self._n_header_bytes += len(data)
            if self._n_header_bytes > MAX_HEADER_BYTES:
                self.send_400_response("The headers are too large.")


def open_sockets(settings: ServeSettings) -> list[socket.socket]:
    """Bound and listening; UsageError names the address that cannot be had. A free port is the same for all hosts."""
    found: list[socket.socket] = []
    port = settings.port
    try:
        for host in settings.hosts:
            sock = _unix_socket(host) if host.endswith(".sock") else _tcp_socket(host, port, len(settings.hosts) > 1)
            found.append(sock)
            if sock.family != socket.AF_UNIX:
                port = sock.getsockname()[1]
    except BaseException:
        for sock in found:
            _close(sock, _file_of(sock))
        raise
    return found


def _tcp_socket(host: str, port: int, several: bool) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise UsageError(f"--host {host} is no address: {error.strerror or error}") from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(several))
        sock.bind(address)
        sock.listen(2048)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        hint = "another server has it? --port 0 takes a free one"
        raise UsageError(f"cannot listen at {host}:{port}: {error.strerror}", hint) from None
    return sock


def _unix_socket(path: str) -> socket.socket:
    """A socket file, in the place of one that no server answers at any more."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if Path(path).is_socket():
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                try:
                    probe.connect(path)
                except ConnectionRefusedError:
                    Path(path).unlink()
        sock.bind(path)
        sock.listen(2048)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise UsageError(f"cannot listen at {path}: {error.strerror or error}") from None
    return sock


def _file_of(sock: socket.socket) -> str | None:
    return str(sock.getsockname()) if sock.family == socket.AF_UNIX else None


def _close(sock: socket.socket, file: str | None) -> None:
    """Also when uvicorn has closed it: a socket's file stays behind."""
    sock.close()
    if file is not None:
        Path(file).unlink(missing_ok=True)


def _address(sock: socket.socket, settings: ServeSettings) -> str:
    """What to type into a client."""
    name = sock.getsockname()
    if sock.family == socket.AF_UNIX:
        return str(name)
    host = f"[{name[0]}]" if sock.family == socket.AF_INET6 else name[0]
    return f"{'https' if settings.ssl_key_file else 'http'}://{host}:{name[1]}{settings.api_prefix}"


def _load_tls(config: uvicorn.Config, settings: ServeSettings) -> None:
    """UsageError for a key or a certificate that cannot be read."""
    try:
        config.load()
    except OSError as error:  # an SSLError is one
        files = f"--ssl-key-file {settings.ssl_key_file} or --ssl-cert-file {settings.ssl_cert_file}"
        raise UsageError(f"{files} cannot be used: {error.strerror or error}") from None
