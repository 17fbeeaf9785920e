"""Where a trial that a user's command trains runs on a cluster: what it reserves, and one command a node."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from froude.config import ConfigError, Run, Trainer
from froude.external.process import Ended
from froude.external.process import run as run_command
from froude.external.trial import Start, prepare
from froude.launch.readiness import wait_until
from froude.launch.threads import has
from froude.material import Material
from froude.space import Trial


class _Over(Exception):
    """Another node's command has failed."""


def resources(trainer: Trainer, lane: int) -> tuple[list[dict[str, float]], str]:
    """Bundles, one a node, and how they are placed; a byte of memory tells the lanes of a sweep apart."""
    node = _node(trainer)
    if trainer.nodes > 1:
        return [dict(node) for _ in range(trainer.nodes)], "STRICT_SPREAD"
    return [{**node, "memory": lane + 1}], "PACK"


def _node(trainer: Trainer) -> dict[str, float]:
    """What a command reserves of each node."""
    return {"CPU": float(trainer.cpus)} | ({"GPU": float(trainer.gpus)} if trainer.gpus else {})


def check_room(trials: Sequence[Trial], *, wait: bool = False) -> None:
    """ConfigError if the connected cluster has too few nodes with what a command reserves.

    With `wait` the others are waited for where it has one such: after `ray up` nodes come one by one.
    """
    for trainer in {t.runs[0].trainer.model_dump_json(): t.runs[0].trainer for t in trials}.values():
        if trainer.command:
            _check_nodes(trainer, wait)


def _check_nodes(trainer: Trainer, wait: bool) -> None:
    wanted = _node(trainer)
    each = f"{trainer.cpus} CPUs and {trainer.gpus} GPUs each"

    def fit() -> int:
        return sum(has(node["Resources"], wanted) for node in ray.nodes() if node["Alive"])

    def missing() -> str:
        return (
            f"a trial must find its `trainer.nodes`, {trainer.nodes} with {each}, but the cluster has {fit()} such; "
            "reserve less, or use a larger cluster, such as this machine with all that it has: `ray start --head`, "
            "then --address auto"
        )

    if (found := fit()) >= trainer.nodes:
        return
    if not wait or not found:
        raise ConfigError(missing())
    lacks = f"the cluster has {found} of the {trainer.nodes} nodes that a trial needs, with {each}"
    wait_until(lambda: fit() >= trainer.nodes, [wanted] * trainer.nodes, lacks, missing)


def starts(material: Material) -> Callable[[Run, Callable[[], None]], Start]:
    """How a run's command is started, from the process that holds its first node: once there, or once on each node."""

    def start_of(run: Run, tick: Callable[[], None]) -> Start:
        limit = run.trainer.time_limit

        def here(words: Sequence[str], folder: Path, told: Mapping[str, str]) -> Ended:
            return run_command(words, folder, told, time_limit=limit, tick=tick)

        def on_all(words: Sequence[str], folder: Path, told: Mapping[str, str]) -> Ended:
            return _on_all(run, material, words, folder, told, tick)

        return here if run.trainer.nodes == 1 else on_all

    return start_of


def _on_all(
    run: Run,
    material: Material,
    words: Sequence[str],
    folder: Path,
    told: Mapping[str, str],
    tick: Callable[[], None],
) -> Ended:
    """The first node's command in this process, each other's in its bundle; one that fails ends all."""
    trainer, group = run.trainer, ray.util.get_current_placement_group()
    assert group is not None  # Tune has made it
    rendezvous = _rendezvous()
    nodes: list[Any] = []
    others: list[Any] = []
    for rank in range(1, trainer.nodes):
        place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank)
        reserved = {"num_cpus": trainer.cpus, "num_gpus": trainer.gpus, "scheduling_strategy": place}
        nodes.append(ray.remote(_Node).options(**reserved).remote())
        environment = {**told, **rendezvous, **_ranks(rank, trainer.nodes)}
        given = (run.to_dict(), material.to_dict(), list(words), str(folder), rank, environment)
        others.append(nodes[-1].run.remote(*given))
    failed: list[Ended] = []

    def watch() -> None:
        tick()
        ended, _ = ray.wait(others, num_returns=len(others), timeout=0)
        failed.extend(each for each in ray.get(ended) if each.code or each.timed_out)
        if failed:
            raise _Over

    try:
        first = run_command(
            words,
            folder,
            {**told, **rendezvous, **_ranks(0, trainer.nodes)},
            time_limit=trainer.time_limit,
            tick=watch,
        )
        if not first.code and not first.timed_out:
            failed += [each for each in ray.get(others) if each.code or each.timed_out]
        return failed[0] if failed else first
    except _Over:
        return failed[0]
    finally:
        for node in nodes:
            ray.kill(node)  # the end of its process ends the command


class _Node:
    """A process in another node's bundle.

    An actor, since it can be killed at any moment: Ray aborts a process that cancels a task just when that finishes.
    """

    def run(
        self,
        run: dict[str, Any],
        material: dict[str, Any],
        words: list[str],
        folder: str,
        rank: int,
        environment: dict[str, str],
    ) -> Ended:
        found, place = Run.from_dict(run), Path(folder)
        if not (place / "run.json").exists():  # a host of its own disk
            prepare(place, found, Material.from_dict(material))
        own = place / f"node-{rank}"
        own.mkdir(exist_ok=True)
        return run_command(words, own, environment, time_limit=found.trainer.time_limit)


def _ranks(rank: int, nodes: int) -> dict[str, str]:
    """One process a node, to torch.distributed as it is, and to torchrun, which starts more, by its own variables."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(nodes),
        "LOCAL_RANK": "0",
        "NODE_RANK": str(rank),
        "PET_NODE_RANK": str(rank),
        "PET_NNODES": str(nodes),
    }


def _rendezvous() -> dict[str, str]:
    """Where the first node's command is to be found, for torch.distributed and for torchrun."""
    with socket.socket() as found:
        found.bind(("", 0))
        port = found.getsockname()[1]
    told = {"MASTER_ADDR": ray.util.get_node_ip_address(), "MASTER_PORT": str(port)}
    return told | {f"PET_{name}": value for name, value in told.items()}
