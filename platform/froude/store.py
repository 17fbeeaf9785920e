"""Where bytes live: one Location, local or on S3, that yields pyarrow, fsspec and Polars access alike."""

from __future__ import annotations

import contextlib
import os
import re
import uuid
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from froude import durable, s3
from froude.config import ConfigError
from froude.section import without_secrets

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem
    from pyarrow.fs import FileSystem


@dataclass(frozen=True)
class Location:
    """A file or folder, local (absolute path) or on S3 (s3://bucket/key); nothing is touched until asked."""

    url: str

    @classmethod
    def parse(cls, url: str | os.PathLike[str] | Location) -> Location:
        """From a path, a file:// or an s3:// URL; ConfigError for any other scheme."""
        if isinstance(url, Location):
            return url
        text = os.fspath(url)
        scheme, _, rest = text.partition("://")
        if not text or "\0" in text:
            raise ConfigError(f"a store must be a path or an s3:// URL, but got {text!r}; name a directory")
        named = re.fullmatch(r"file://(?:localhost)?(/.*)", text)
        if named or not re.match(r"(\w+://|file:|s3:)", text):
            path = unquote(named[1]) if named else os.path.expanduser(text)
            return cls(str(Path(os.path.abspath(path))))
        bucket, _, key = rest.partition("/")
        if scheme != "s3" or not bucket or any(mark in rest for mark in "?#"):
            raise ConfigError(
                f"a store must be a local path or s3://bucket/prefix, but got {without_secrets(text)!r}; "
                "other settings, such as the endpoint, come from AWS_ENDPOINT_URL and the like"
            )
        return cls("s3://" + "/".join([bucket, *(part for part in key.split("/") if part)]))

    def __truediv__(self, child: str) -> Location:
        parts = child.split("/")
        if not all(parts) or ".." in parts or "." in parts:
            raise ValueError(f"a child must be a relative name without `.` and `..`, but got {child!r}")
        return Location(f"{self.url.rstrip('/')}/{child}")

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        return self.url.rstrip("/").rpartition("/")[2]

    @property
    def parent(self) -> Location:
        """The folder around; a bucket or the root has none and is its own."""
        above, _, name = self.url.removeprefix("s3://").rpartition("/")
        if not self.is_local:
            return Location(f"s3://{above or name}")
        return Location(above or "/")

    @property
    def is_local(self) -> bool:
        return not self.url.startswith("s3://")

    @property
    def path(self) -> Path:
        """The local path; ValueError on S3."""
        if not self.is_local:
            raise ValueError(f"{self.url} is not a local path")
        return Path(self.url)

    def within(self, folder: Location) -> bool:
        """Whether this is that folder, or lies below it."""
        return f"{self.url}/".startswith(f"{folder.url.rstrip('/')}/")

    def arrow(self) -> tuple[FileSystem, str]:
        """File system and path for pyarrow, and for Ray's `storage_filesystem`."""
        if not self.is_local:
            return s3.arrow(s3.Settings.from_environment(), os.getpid()), self.url.removeprefix("s3://")
        from pyarrow import fs

        return fs.LocalFileSystem(), self.url

    def fsspec(self) -> tuple[AbstractFileSystem, str]:
        """File system and path for fsspec: s3fs or local."""
        if not self.is_local:
            return s3.fsspec(s3.Settings.from_environment(), os.getpid()), self.url.removeprefix("s3://")
        from fsspec.implementations.local import LocalFileSystem

        return LocalFileSystem(), self.url

    def polars(self) -> tuple[str, dict[str, Any]]:
        """URL and `storage_options` for Polars' scan functions."""
        if self.is_local:
            return self.url, {}
        return self.url, s3.polars(s3.Settings.from_environment())

    def read(self) -> bytes:
        """The whole file; FileNotFoundError if there is none."""
        if self.is_local:
            return self.path.read_bytes()
        with self.reader() as source:
            return source.read_at(source.size(), 0)

    def read_range(self, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`, fewer at the end of the file."""
        with self.reader() as source:
            return source.read_at(length, offset)

    def reader(self) -> s3.Reader:
        """The file, open to be read in pieces; FileNotFoundError if there is none."""
        return s3.Reader(*self.arrow())

    def exists(self) -> bool:
        filesystem, path = self.arrow()
        with s3.arrow_errors():
            return bool(filesystem.get_file_info(path).type.value)

    def size(self) -> int | None:
        """Bytes of the file; None if it is absent or a folder."""
        filesystem, path = self.arrow()
        with s3.arrow_errors():
            info = filesystem.get_file_info(path)
        return int(info.size) if info.is_file else None

    def modified(self) -> datetime | None:
        """When the file was written last, by its store's clock (S3: whole seconds); None if it is absent."""
        filesystem, path = self.arrow()
        with s3.arrow_errors():
            info = filesystem.get_file_info(path)
        return datetime.fromtimestamp(info.mtime_ns / 1e9, UTC) if info.is_file else None

    def knock(self) -> None:
        """Ask an S3 server for a name here: Refused if it takes no requests of this host."""
        if self.is_local:
            return
        filesystem, path = self.fsspec()
        bucket, _, key = path.partition("/")
        with s3.os_errors():  # an answer with a body, so that it says why
            filesystem.call_s3("list_objects_v2", Bucket=bucket, Prefix=f"{key}/" if key else "", MaxKeys=1)

    def children(self) -> list[str]:
        """Names of the files and folders here, sorted; [] if there is no such folder."""
        return sorted(name for name, _ in self._list(recursive=False))

    def walk(self, suffix: str = "") -> list[Location]:
        """All files below whose names end in `suffix`, sorted."""
        found = sorted(
            name for name, is_file in self._list(recursive=True) if is_file and name.endswith(suffix)
        )
        return [self / name for name in found]

    def _list(self, *, recursive: bool) -> Iterator[tuple[str, bool]]:
        from pyarrow import fs

        filesystem, path = self.arrow()
        selector = fs.FileSelector(path, allow_not_found=True, recursive=recursive)
        try:
            with s3.arrow_errors():
                found = filesystem.get_file_info(selector)
        except NotADirectoryError:
            return
        for info in found:
            name = info.path[len(path) :].strip("/")
            if name and not name.endswith(durable.TEMPORARY):
                yield name, info.is_file

    def create(self, data: bytes) -> bool:
        """Create the file, whole and durable, unless it exists already: then False.

        At most one of several concurrent writers gets True, as long as their bytes differ: on S3 a refused PUT
        may be the retry of one's own that won, so equal bytes count as one's own. A local file system must have
        hard links.
        """
        if not self.is_local:
            return self._create_s3(data)
        with durable.temporary(self.path, data) as temporary:
            try:
                os.link(temporary, self.path)
            except FileExistsError:
                # Over NFS the answer to a link that succeeded can get lost; the count of links shows it.
                return os.stat(temporary).st_nlink == 2
            durable.sync_folder(self.path.parent)
        return True

    def _create_s3(self, data: bytes) -> bool:
        filesystem, path = self.fsspec()
        for attempt in range(s3.ATTEMPTS):
            try:
                # One single-part PUT whatever the size: some stores ignore If-None-Match on multipart uploads.
                with s3.os_errors():
                    filesystem.pipe_file(path, data, mode="create", chunksize=len(data) + 1)
                return True
            except (PermissionError, FileNotFoundError):
                raise
            except OSError as refusal:  # FileExistsError, EINVAL or EBUSY, according to the server
                try:
                    return self.read() == data
                except OSError as error:
                    if attempt == s3.ATTEMPTS - 1 or not isinstance(error, FileNotFoundError):
                        raise refusal from error
        raise AssertionError("unreachable")

    def replace(self, data: bytes) -> None:
        """Write the file, atomically replacing one that exists."""
        if self.is_local:
            with durable.temporary(self.path, data) as temporary:
                os.replace(temporary, self.path)
                durable.sync_folder(self.path.parent)
        else:
            filesystem, path = self.fsspec()
            with s3.os_errors():
                filesystem.pipe_file(path, data)

    @contextlib.contextmanager
    def output(self) -> Iterator[Any]:
        """A stream for bulk bytes, durable on leaving; an error leaves nothing locally, a torn object on S3."""
        if not self.is_local:
            filesystem, path = self.arrow()
            with s3.arrow_errors(), filesystem.open_output_stream(path) as sink:
                yield sink
            return
        with durable.temporary(self.path) as temporary:
            with open(temporary, "wb") as sink:
                yield sink
                sink.flush()
                os.fsync(sink.fileno())
            os.replace(temporary, self.path)
            durable.sync_folder(self.path.parent)

    def delete(self) -> None:
        """Remove the file, if it is there."""
        if self.is_local:
            self.path.unlink(missing_ok=True)
        else:
            filesystem, path = self.fsspec()  # pyarrow would leave a marker object in the folder's place
            with contextlib.suppress(FileNotFoundError), s3.os_errors():
                filesystem.rm_file(path)

    def move(self, target: Location) -> None:
        """Give the file another name in the same store, if it is there; on S3 it is copied, then deleted."""
        if self.is_local:
            target.path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                os.replace(self.path, target.path)
                durable.sync_folder(target.path.parent)
                durable.sync_folder(self.path.parent)
        else:
            filesystem, path = self.fsspec()
            with contextlib.suppress(FileNotFoundError), s3.os_errors():
                filesystem.cp_file(path, target.url.removeprefix("s3://"))
                filesystem.rm_file(path)

    def discard_unfinished(self, before: datetime) -> None:
        """Remove what killed writers left below: temporary files last written, or S3 uploads begun, `before`.

        Neither is listed or read, but both take space that is paid for. At most a thousand uploads a call.
        """
        if self.is_local:
            for temporary in self.path.rglob(f".*{durable.TEMPORARY}"):
                with contextlib.suppress(FileNotFoundError):
                    if temporary.stat().st_mtime < before.timestamp():
                        temporary.unlink()
            return
        filesystem, path = self.fsspec()
        bucket, _, key = path.partition("/")
        with s3.os_errors():
            found = filesystem.call_s3(
                "list_multipart_uploads", Bucket=bucket, Prefix=f"{key}/" if key else ""
            )
            for upload in found.get("Uploads", ()):
                if upload["Initiated"] < before:
                    name = {"Key": upload["Key"], "UploadId": upload["UploadId"]}
                    with contextlib.suppress(FileNotFoundError):
                        filesystem.call_s3("abort_multipart_upload", Bucket=bucket, **name)


def _remedy(location: Location, error: Exception) -> str:
    if location.is_local:
        return "choose another place or free it"
    if isinstance(error, FileNotFoundError):
        return f"create the bucket {location.url.split('/')[2]} first, or check the name"
    endpoint = s3.Settings.from_environment().endpoint
    return f"check AWS_ENDPOINT_URL (now {endpoint or 'not set: AWS itself'}) and AWS_REGION"


def _reason(error: Exception) -> str:
    return " ".join((getattr(error, "strerror", None) or str(error)).split())[:200]


@contextlib.contextmanager
def reported(location: Location, rule: str) -> Iterator[None]:
    """Turn a store's error into a ConfigError of `rule`, the location and a remedy."""
    try:
        yield
    except s3.Refused as error:
        raise ConfigError(f"{rule}, but {location}: {error}") from error
    except OSError as error:
        if location.is_local and isinstance(error, FileNotFoundError):  # read: a writer makes the folders
            raise ConfigError(f"{rule}, but there is no file {location}; check its name") from error
        raise ConfigError(f"{rule}, but {location}: {_reason(error)}; {_remedy(location, error)}") from error


def probe_writable(location: Location) -> None:
    """Write, read back and delete a small file; ConfigError if that fails or a second create succeeds.

    Folders that were made for it are removed again: what is checked next may refuse to go on.
    """
    probe = location / f".froude-probe-{uuid.uuid4().hex}"
    above = (location.path, *location.path.parents) if location.is_local else ()
    made = [folder for folder in above if not folder.exists()]
    with reported(location, "the store must be writable"):
        created = False
        try:
            created = probe.create(b"first")
            exclusive = not probe.create(b"second") and probe.read() == b"first"
        except OSError as error:
            if location.is_local and error.errno in durable.NO_LINKS:
                raise ConfigError(
                    f"the store must have hard links, but {location} has none ({_reason(error)}); "
                    "use a local disk, NFS or S3"
                ) from error
            raise
        finally:
            try:
                probe.delete()
            except OSError as error:
                if created:
                    warnings.warn(f"old checkpoints will stay, as {probe}: {error}", stacklevel=2)
            with contextlib.suppress(OSError):
                for folder in made:
                    folder.rmdir()
    if not (created and exclusive):
        raise ConfigError(
            f"the store must refuse to create a file twice (If-None-Match on PUT), but {location} does not, "
            "so two attempts could both commit; use AWS S3, Ceph RGW, MinIO or a local path"
        )
