"""An HTTP proxy in front of an S3 server, which can refuse requests, leave them unanswered, or catch an upload."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast
from urllib.parse import urlsplit

UPSTREAM_SECONDS = 60.0
HOP = ("connection", "keep-alive", "transfer-encoding")  # headers that concern one connection only
BUSY = b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>SlowDown</Code><Message>chaos</Message></Error>'


class S3Proxy:
    """Passes requests on to the HTTP server at `endpoint` as long as the `with` statement lasts.

    The requests keep their headers, Host included, so signatures stay valid.
    """

    def __init__(self, endpoint: str) -> None:
        self.upstream = urlsplit(endpoint).netloc
        self._lock = threading.Lock()
        self._refusals = 0
        self._flowing = threading.Event()
        self._flowing.set()
        self.held = 0  # requests that got no answer
        self._trap = ""
        self._sprung = threading.Event()
        self.caught = ""  # path of the upload that the trap holds
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    def __enter__(self) -> S3Proxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.flow()
        self._server.shutdown()
        self._server.server_close()

    def refuse(self, requests: int) -> None:
        """Answer 503 to this many of the next requests."""
        with self._lock:
            self._refusals = requests

    @property
    def refusals(self) -> int:
        """Requests that are still to be refused."""
        return self._refusals

    def hang(self) -> None:
        """Accept requests and answer none, until `flow`."""
        self.held = 0
        self._flowing.clear()

    def trap(self, folder: str) -> None:
        """Hold the next upload to a path with this piece in it, before the server sees it, until `flow`."""
        with self._lock:
            self._trap, self.caught = folder, ""
            self._sprung.clear()

    def flow(self) -> None:
        """Answer again; what was held gets its connection closed."""
        with self._lock:
            self._trap = ""
        self._sprung.set()
        self._flowing.set()

    def verdict(self, method: str, path: str) -> str:
        """What becomes of a request that has just arrived: pass, refuse or drop (after it was held)."""
        with self._lock:
            caught = bool(self._trap) and method in ("PUT", "POST") and self._trap in path
            if caught:
                self._trap, self.caught = "", path
        if caught:
            self._sprung.wait()
            return "drop"
        if not self._flowing.is_set():
            with self._lock:
                self.held += 1
            self._flowing.wait()
            return "drop"
        with self._lock:
            if self._refusals:
                self._refusals -= 1
                return "refuse"
        return "pass"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, proxy: S3Proxy) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.proxy = proxy

    def handle_error(self, *_: Any) -> None:
        """A client that was killed leaves a broken connection; nothing to say."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def _pass(self) -> None:
        proxy = cast(_Server, self.server).proxy
        length = int(self.headers.get("Content-Length") or 0)
        body = (
            self._chunks()
            if "chunked" in self.headers.get("Transfer-Encoding", "")
            else self.rfile.read(length)
        )
        verdict = proxy.verdict(self.command, self.path)
        if verdict == "drop":
            self.close_connection = True
        elif verdict == "refuse":
            self._answer(503, [("Content-Type", "application/xml"), ("Content-Length", str(len(BUSY)))], BUSY)
        else:
            self._forward(proxy.upstream, body)

    def _forward(self, upstream: str, body: bytes) -> None:
        connection = http.client.HTTPConnection(upstream, timeout=UPSTREAM_SECONDS)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in (*HOP, "expect", "content-length"):
                    connection.putheader(name, value)
            if body or self.command in ("PUT", "POST"):
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body or None)
            answer = connection.getresponse()
            content = answer.read()
            headers = [(n, v) for n, v in answer.getheaders() if n.lower() not in (*HOP, "content-length")]
            # The length of what a HEAD is about is the server's word; elsewhere it is that of what was read.
            stated = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
            if stated is not None and answer.status not in (204, 304):
                headers.append(("Content-Length", stated))
            self._answer(answer.status, headers, content)
        finally:
            connection.close()

    def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _chunks(self) -> bytes:
        found = bytearray()
        while size := int(self.rfile.readline().split(b";")[0], 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            continue
        return bytes(found)

    do_GET: Callable[..., None] = _pass
    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET
