"""S3 clients of pyarrow, s3fs and Polars, with the same settings, time-outs and retries."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem
    from pyarrow.fs import FileSystem

CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 30.0
#: What s3fs takes for something else than a lack of permission; keys for a while have a token.
RUN_OUT = ("ExpiredToken", "InvalidToken", "TokenRefreshRequired")
ARROW_REFUSALS = re.compile(
    r"\b(ACCESS_DENIED|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH|EXPIRED_TOKEN|INVALID_CLIENT_TOKEN_ID|"
    r"UNRECOGNIZED_CLIENT|MISSING_AUTHENTICATION_TOKEN|HTTP status 403)\b"
)
ATTEMPTS = 3  # of one request, the first included; never multiplied by an outer layer's own retries


@dataclass(frozen=True)
class Settings:
    """The standard AWS_* variables; None leaves the choice to each library's own credential chain."""

    endpoint: str | None
    region: str | None
    key: str | None = field(repr=False)
    secret: str | None = field(repr=False)
    token: str | None = field(repr=False)

    @classmethod
    def from_environment(cls) -> Settings:
        # pyarrow's SDK otherwise adds a trailing checksum, which many servers other than AWS answer with 411.
        os.environ.setdefault("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
        # botocore asks an instance once for its role's keys, for a second, and all processes of a node ask at once.
        os.environ.setdefault("AWS_METADATA_SERVICE_NUM_ATTEMPTS", "3")
        os.environ.setdefault("AWS_METADATA_SERVICE_TIMEOUT", "3")
        env = os.environ.get
        endpoint = env("AWS_ENDPOINT_URL_S3") or env("AWS_ENDPOINT_URL")
        region = env("AWS_REGION") or env("AWS_DEFAULT_REGION") or ("us-east-1" if endpoint else None)
        key, secret = env("AWS_ACCESS_KEY_ID"), env("AWS_SECRET_ACCESS_KEY")
        return cls(endpoint, region, key, secret, env("AWS_SESSION_TOKEN"))


@lru_cache
def arrow(settings: Settings, pid: int) -> FileSystem:
    """Client for bulk bytes, one a process (`pid` keeps a forked child from sharing its parent's)."""
    from pyarrow import fs

    options: dict[str, Any] = {
        "request_timeout": READ_TIMEOUT_S,
        "connect_timeout": CONNECT_TIMEOUT_S,
        "retry_strategy": fs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
    }
    if settings.endpoint:
        scheme, _, host = settings.endpoint.rpartition("://")
        options |= {"endpoint_override": host.rstrip("/"), "scheme": scheme or "https"}
    if settings.region:
        options["region"] = settings.region
    if settings.key:
        options |= {
            "access_key": settings.key,
            "secret_key": settings.secret,
            "session_token": settings.token,
        }
    return fs.S3FileSystem(**options)


class Reader:
    """An object (or a file), open to be read in pieces; FileNotFoundError if there is none, or it is deleted meanwhile.

    For the latter pyarrow has several words, all of them OSError, and one for a stream that breaks off, which it does
    not try again; this does, once.
    """

    def __init__(self, filesystem: FileSystem, path: str) -> None:
        self._filesystem, self._path = filesystem, path
        with arrow_errors():
            self._file = filesystem.open_input_file(path)
        self.name = path if filesystem.type_name == "local" else f"s3://{path}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def size(self) -> int:
        """Bytes of the whole object."""
        return int(self._file.size())

    def version(self) -> str:
        """What names the object that was opened (its ETag): another one once it is written again with other bytes."""
        return str(self._file.metadata().get("ETag"))

    def read_at(self, length: int, offset: int) -> bytes:
        """`length` bytes from `offset`, fewer at the object's end."""
        with arrow_errors():
            try:
                return bytes(self._file.read_at(length, offset))
            except OSError as error:
                found = self._filesystem.get_file_info(
                    self._path
                )  # raises if the store does not answer at all
                if not found.is_file:
                    gone = "it was deleted while it was read"
                    raise FileNotFoundError(errno.ENOENT, gone, self.name) from error
                return bytes(self._file.read_at(length, offset))

    def close(self) -> None:
        self._file.close()


@lru_cache
def fsspec(settings: Settings, pid: int) -> AbstractFileSystem:
    """Client for conditional PUTs, one a process."""
    import s3fs

    client = {"endpoint_url": settings.endpoint, "region_name": settings.region}
    filesystem = s3fs.S3FileSystem(
        key=settings.key,
        secret=settings.secret,
        token=settings.token,
        client_kwargs={name: value for name, value in client.items() if value},
        config_kwargs={
            "connect_timeout": CONNECT_TIMEOUT_S,
            "read_timeout": READ_TIMEOUT_S,
            "retries": {"total_max_attempts": ATTEMPTS, "mode": "standard"},
            "request_checksum_calculation": "when_required",
        },
        use_listings_cache=False,
        skip_instance_cache=True,
    )
    filesystem.retries = 1  # s3fs's own count multiplies botocore's
    return filesystem


def polars(settings: Settings) -> dict[str, Any]:
    """`storage_options` of Polars' scan functions."""
    options = {
        "aws_endpoint_url": settings.endpoint,
        "aws_region": settings.region,
        "aws_access_key_id": settings.key,
        "aws_secret_access_key": settings.secret,
        "aws_session_token": settings.token,
        "aws_allow_http": "true" if (settings.endpoint or "").startswith("http://") else None,
        "timeout": f"{READ_TIMEOUT_S:g}s",
        "connect_timeout": f"{CONNECT_TIMEOUT_S:g}s",
        "max_retries": ATTEMPTS - 1,
    }
    return {name: value for name, value in options.items() if value}


class Refused(PermissionError):
    """A server takes no requests of this host: for their keys, for what they ask for, or for its clock.

    Another host may do better, and no other attempt of this one.
    """


def _refused(code: str) -> Refused:
    host = socket.gethostname()
    if code == "RequestTimeTooSkewed":
        return Refused(
            f"an S3 server refuses requests signed at a time that is not its own, but the clock of {host} says "
            f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC; set it (NTP), then start again"
        )
    return Refused(
        f"an S3 server refuses the keys of host {host} ({code}); check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY "
        "there, or the instance's role, and the bucket's policy"
    )


@contextlib.contextmanager
def os_errors() -> Iterator[None]:
    """Raise botocore's connection errors as OSError, which is what pyarrow raises for the same.

    Refused if the server doesn't take the keys, or the signature for its time.
    """
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError

    try:
        yield
    except (NoCredentialsError, PartialCredentialsError) as error:
        raise _refused(
            "it has none" if isinstance(error, NoCredentialsError) else "one is missing"
        ) from error
    except BotoCoreError as error:
        raise OSError(errno.EIO, " ".join(str(error).split())) from error
    except OSError as error:
        refusal = error.__cause__
        if not isinstance(refusal, ClientError):
            raise
        code = refusal.response.get("Error", {}).get("Code")
        if isinstance(error, PermissionError) or code in (*RUN_OUT, "RequestTimeTooSkewed"):
            raise _refused(str(code)) from error
        if error.args == (None,):  # the server said a code and nothing else
            raise type(error)(str(refusal)) from refusal
        raise


@contextlib.contextmanager
def arrow_errors() -> Iterator[None]:
    """Raise as Refused what pyarrow raises as an OSError with one of the server's codes in its text.

    For answers without a body, as to HEAD, it is ACCESS_DENIED, and may be due to the clock as well.
    """
    try:
        yield
    except OSError as error:
        if found := ARROW_REFUSALS.search(str(error)):
            raise _refused(found[0]) from error
        raise
