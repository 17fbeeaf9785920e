"""Fixtures for tests that need S3: a server of one's own, and a place that is local in one run, S3 in the next."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from froude.store import Location

_numbers = itertools.count()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The endpoint of moto's S3 server, which checks neither secrets nor checksums."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="session")
def unconditional_server() -> Iterator[str]:
    """The endpoint of a server that ignores If-None-Match, as some gateways in front of object stores do."""
    yield from _served(lambda environ: environ.pop("HTTP_IF_NONE_MATCH", None))


@pytest.fixture
def slow_server() -> Iterator[tuple[str, list[Callable[[int], None]]]]:
    """The endpoint of a server that lets the parts of a large object wait, and who is told how many bytes each has."""
    told: list[Callable[[int], None]] = []

    def wait(environ: dict[str, Any]) -> None:
        if environ["REQUEST_METHOD"] == "PUT" and "partNumber" in environ["QUERY_STRING"]:
            time.sleep(0.1)
            for each in told:
                each(int(environ["CONTENT_LENGTH"]))

    for endpoint in _served(wait):
        yield endpoint, told


def _served(first: Callable[[dict[str, Any]], object]) -> Iterator[str]:
    """The endpoint of moto's server, which is given each request after `first`."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    served = DomainDispatcherApplication(create_backend_app)

    def answer(environ: dict[str, Any], start_response: Any) -> Any:
        first(environ)
        return served(environ, start_response)

    server = make_server("127.0.0.1", 0, answer, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()


REFUSAL = b"""<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>SignatureDoesNotMatch</Code><Message>The signature does not match.</Message></Error>"""


@pytest.fixture(scope="session")
def refusing_server() -> Iterator[str]:
    """The endpoint of a server that takes nobody's signature."""
    from werkzeug.serving import make_server

    def refuse(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("403 Forbidden", [("Content-Type", "application/xml")])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [REFUSAL]

    server = make_server("127.0.0.1", 0, refuse, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()


@pytest.fixture
def s3(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Location:
    """An empty bucket of one's own."""
    return empty_bucket(s3_server, monkeypatch)


def empty_bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Location:
    """A new bucket at a server that checks no secrets."""
    return create_bucket(endpoint, f"bucket-{next(_numbers)}", monkeypatch)


def create_bucket(endpoint: str, name: str, monkeypatch: pytest.MonkeyPatch) -> Location:
    """A bucket of that name, and an environment that leads to it."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    bucket = Location.parse(f"s3://{name}")
    filesystem, name = bucket.fsspec()
    filesystem.call_s3("create_bucket", Bucket=name)
    return bucket


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest) -> Location:
    """An empty folder: on disk, then on S3."""
    if request.param == "s3":
        bucket: Location = request.getfixturevalue("s3")
        return bucket / "a folder"
    return Location.parse(request.getfixturevalue("tmp_path") / "a folder")
