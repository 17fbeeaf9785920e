"""Which hosts may take part in a run: those that reach its store, have what it needs, and compute alike."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from froude.config import ConfigError, Run
from froude.s3 import Refused
from froude.store import Location, reported
from froude.sweep.outage import outage_in, through_outage

if TYPE_CHECKING:
    import torch

    from froude.checkpoint.run_store import RunStore
    from froude.train.exact.environment import Build

SHOWN = 3  # hosts in one error
ALIKE = (
    "an exact run needs hosts of one build, or --other-build, which gives up that all of it is reproducible"
)


class Unfit(RuntimeError):
    """Some hosts of a worker group may not take part: `hosts` has the reason for each, by the id of its node."""

    def __init__(self, hosts: Mapping[str, str]) -> None:
        super().__init__(dict(hosts))
        self.hosts = dict(hosts)

    @property
    def text(self) -> str:
        """The message where no other host is left."""
        lines = list(self.hosts.values())
        more = f"; and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
        return f"no host is left that may take part: {'; '.join(lines[:SHOWN])}{more}"


@dataclass(frozen=True)
class Guest:
    """What one worker says of its host: the node's id and address, its build, and what speaks against it.

    `refusal` is the store's; `lack` what the run needs and does not find there.
    """

    node: str
    address: str
    build: Build
    refusal: str = ""
    lack: str = ""


@contextmanager
def mark(run: Location) -> Iterator[str]:
    """A file in the run's local folder, gone on leaving, which shows who sees that folder; its name, "" on S3."""
    if not run.is_local:
        yield ""
        return
    name = f".driver-{uuid.uuid4().hex}"
    with reported(run, "a run's folder must be writable"):
        (run / name).replace(b"")
    try:
        yield name
    finally:
        with suppress(OSError):
            (run / name).delete()
            run.path.rmdir()  # unless there is more in it: a run that never began leaves no folder


def sees(run: Location, marked: str) -> bool:
    """Whether this host sees the folder that was marked with a file of this name; always if with none."""
    if not marked:
        return True
    run.parent.children()  # a look for the name alone might be answered by what an NFS client knew before (not tried)
    return marked in run.children()


def admit(
    run: Run,
    store: RunStore,
    device: torch.device,
    suits: Callable[[], object] = lambda: None,
    *,
    other_build: bool = False,
    marked: str = "",
) -> Build:
    """Collective: return rank 0's build; raise Unfit on every rank if some hosts may not take part.

    Each must see the file that the driver has `marked` the run's folder with: else its disk is taken for the study's.
    `suits` raises ConfigError where a host lacks what the run needs (its data, a library, a GPU that can do what is
    asked); if all lack something it is not the hosts', and raised.

    An exact run's hosts must have the build that it has had so far; before its first attempt, the one that most of them
    have. With `other_build` it goes on with any build, and is reproducible only from that step on.
    """
    from froude.checkpoint.collective import on_every_rank
    from froude.train.exact import environment

    if run.reduction == "exact":
        environment.make_deterministic(device)
    guests = on_every_rank(lambda: _describe(store, device, marked, suits))
    if all(guest.lack for guest in guests):
        raise ConfigError(guests[0].lack)
    refused = {
        guest.node: f"host {guest.address}: {guest.refusal or guest.lack}"
        for guest in guests
        if guest.refusal or guest.lack
    }
    if not refused and run.reduction == "exact" and not other_build:
        odd = environment.unlike([guest.build for guest in guests], store.meta().get("build"))
        refused = {
            guests[rank].node: f"host {guests[rank].address}: its {how}; {ALIKE}" for rank, how in odd.items()
        }
    if refused:
        raise Unfit(refused)
    return guests[0].build


def _describe(store: RunStore, device: torch.device, marked: str, suits: Callable[[], object]) -> Guest:
    import ray

    from froude.train.exact import environment

    refusal = lack = ""
    try:
        through_outage(store.location.knock)
        if not sees(store.location, marked):
            refusal = f"it does not see {store.location.parent.parent}; mount it there"
    except Refused as error:
        refusal = str(error)
    try:
        suits()
    except ConfigError as error:
        if away := outage_in(error):  # nobody's fault, and the run is restarted
            raise away from error
        lack = str(error)
    node = ray.get_runtime_context().get_node_id()
    return Guest(node, ray.util.get_node_ip_address(), environment.describe(device), refusal, lack)
