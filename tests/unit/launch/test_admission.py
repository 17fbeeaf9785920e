"""Which hosts may take part in a run, as the only worker of a group sees it."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
import torch
from s3_server import REFUSAL, refusing_server, s3, s3_server

from froude.checkpoint import collective
from froude.checkpoint.run_store import RunStore
from froude.config import ConfigError, Run
from froude.launch.hosts.admission import SHOWN, Guest, Unfit, admit, mark, sees
from froude.store import Location
from froude.sweep import outage
from froude.train.exact import environment

__all__ = ["refusing_server", "s3", "s3_server"]

CPU = torch.device("cpu")
EXACT = Run(name="large", tokens=7680, slots=2, reduction="exact")


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "node"))
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "10.0.0.7")
    yield
    torch.use_deterministic_algorithms(False)


def test_an_exact_run_goes_on_with_its_own_build_only(tmp_path: Path) -> None:
    store = RunStore(Location.parse(tmp_path), "large")
    here = admit(EXACT, store, CPU)
    assert here == environment.describe(CPU)
    store.open_attempt("recipe", {"build": {**here, "threads": 512}})
    with pytest.raises(Unfit) as unfit:
        admit(EXACT, store, CPU)
    assert list(unfit.value.hosts) == ["node"]
    assert f"host 10.0.0.7: its threads is {here['threads']} instead of 512" in unfit.value.text
    assert admit(EXACT, store, CPU, other_build=True) == here
    assert admit(EXACT.replace(reduction="fast"), store, CPU) == here


def test_a_host_whose_keys_are_refused_takes_no_part_in_any_run(
    refusing_server: str, s3: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", refusing_server)
    with pytest.raises(Unfit, match=r"host 10\.0\.0\.7: .*\(SignatureDoesNotMatch\).*AWS_SECRET_ACCESS_KEY"):
        admit(EXACT.replace(reduction="fast"), RunStore(s3 / "runs/large", "large"), CPU)


def test_a_store_that_does_not_answer_at_first_is_waited_for(
    s3_server: str, s3: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    knock, left = Location.knock, [OSError(errno.EIO, "SLOW_DOWN")] * 3
    pauses: list[float] = []

    def busy(self: Location) -> None:
        if left:
            raise left.pop()
        knock(self)

    monkeypatch.setattr(Location, "knock", busy)
    monkeypatch.setattr(outage.time, "sleep", pauses.append)
    assert admit(EXACT.replace(reduction="fast"), RunStore(s3 / "runs/large", "large"), CPU)
    assert pauses == [1.0, 2.0, 4.0]


def test_a_host_whose_clock_is_refused_takes_no_part_either(
    refusing_server: str, s3: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a run's first worker meets in a save is no fatal error: the next group asks its host here."""
    skewed = REFUSAL.replace(b"SignatureDoesNotMatch", b"RequestTimeTooSkewed")
    monkeypatch.setattr("s3_server.REFUSAL", skewed)
    monkeypatch.setenv("AWS_ENDPOINT_URL", refusing_server)
    store = RunStore(s3 / "runs/large", "large")
    with pytest.raises(Unfit, match=r"host 10\.0\.0\.7: .*the clock of .*; set it \(NTP\)"):
        admit(EXACT.replace(reduction="fast"), store, CPU)


def test_a_host_that_does_not_see_the_run_s_folder_takes_no_part(tmp_path: Path) -> None:
    """Its own disk lacks the folder, or has one of an earlier run; what it trained there would be lost."""
    here, own = (Location.parse(tmp_path / disk / "study/runs/large") for disk in ("mounted", "own"))
    run = EXACT.replace(reduction="fast")
    with mark(here) as marked:
        admit(run, RunStore(here, "large"), CPU, marked=marked)
        for _ in range(2):
            with pytest.raises(
                Unfit, match=r"host 10\.0\.0\.7: it does not see .*/own/study; mount it there"
            ):
                admit(run, RunStore(own, "large"), CPU, marked=marked)
            (own / ".driver-of-old").replace(b"")
    assert not here.path.exists()


def test_what_one_host_lacks_is_its_own_and_what_all_lack_is_the_run_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, store = EXACT.replace(reduction="fast"), RunStore(Location.parse(tmp_path), "large")

    def lacking() -> None:
        raise ConfigError("`data.path` must name at least one file")

    with pytest.raises(ConfigError, match=r"`data.path` must name at least one file"):
        admit(run, store, CPU, lacking)

    def with_another(describe: Callable[[], Guest]) -> list[Guest]:
        return [Guest("whole", "10.0.0.8", environment.describe(CPU)), describe()]

    monkeypatch.setattr(collective, "on_every_rank", with_another)
    with pytest.raises(Unfit) as unfit:
        admit(run, store, CPU, lacking)
    assert unfit.value.hosts == {"node": "host 10.0.0.7: `data.path` must name at least one file"}
    assert admit(run, store, CPU) == environment.describe(CPU)

    def away() -> None:
        raise ConfigError("`data.path` must be readable") from OSError(errno.EIO, "SLOW_DOWN")

    with pytest.raises(OSError, match=r"`data.path` must be readable"):
        admit(run, store, CPU, away)


def test_a_mark_leaves_what_else_is_in_the_folder(tmp_path: Path) -> None:
    here = Location.parse(tmp_path)
    (here / "commits/00000000.parquet").create(b"record")
    with mark(here) as one, mark(here) as other:
        assert sees(here, one)
        assert sees(here, other)
        assert [name for name in here.children() if not name.startswith(".")] == ["commits"]
    assert [file.name for file in here.walk()] == ["00000000.parquet"]


def test_on_s3_nothing_is_marked(s3: Location) -> None:
    with mark(s3 / "runs/large") as marked:
        assert sees(s3 / "runs/large", marked)
        assert s3.walk() == []


def test_of_many_unfit_hosts_a_few_are_named() -> None:
    text = Unfit({f"node-{number}": f"host {number}: why" for number in range(100)}).text
    assert text.count("why") == SHOWN
    assert text.endswith("; and 97 more")
