"""What is found out of a store before anything is written there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from s3_server import empty_bucket

from froude.config import ConfigError
from froude.s3 import Refused
from froude.store import Location, probe_writable


def test_probe_passes_and_cleans_up(place: Location) -> None:
    probe_writable(place)
    assert place.children() == []


def test_probe_names_an_unwritable_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"must be writable, but .*file/study: .*; choose another"):
        probe_writable(Location.parse(tmp_path / "file/study"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_probe_names_a_read_only_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigError, match="must be writable"):
        probe_writable(Location.parse(tmp_path / "study"))


def test_probe_names_a_missing_bucket(s3: Location) -> None:
    with pytest.raises(ConfigError, match=r"must be writable, but s3://nowhere/x.*create the bucket nowhere"):
        probe_writable(Location.parse("s3://nowhere/x"))


@pytest.mark.slow
def test_probe_names_an_unreachable_endpoint(s3: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(ConfigError, match=r"check AWS_ENDPOINT_URL \(now http://127.0.0.1:9\)"):
        probe_writable(s3 / "study")


def test_a_store_that_deletes_nothing_is_told(s3: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Location) -> None:
        raise Refused("AccessDenied")

    monkeypatch.setattr(Location, "delete", refuse)
    with pytest.warns(UserWarning, match=r"old checkpoints will stay, as s3://.*: AccessDenied"):
        probe_writable(s3)


def test_a_probe_that_is_refused_speaks_of_keys_and_not_of_the_endpoint(
    refusing_server: str, s3: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", refusing_server)
    with pytest.raises(ConfigError, match=r"must be writable, but .* refuses the keys") as refusal:
        probe_writable(s3)
    assert "AWS_SECRET_ACCESS_KEY" in str(refusal.value)
    assert "AWS_ENDPOINT_URL" not in str(refusal.value)


def test_probe_refuses_a_store_without_conditional_writes(
    unconditional_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = empty_bucket(unconditional_server, monkeypatch)
    with pytest.raises(ConfigError, match=r"two attempts could both commit; use AWS S3"):
        probe_writable(bucket / "study")
    assert bucket.walk() == []
