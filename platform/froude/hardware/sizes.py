"""What a plan must know of a run's model and workers, in numbers; whoever can build the model counts them."""

from __future__ import annotations

from dataclasses import dataclass

from froude.config import ConfigError, Run

#: Parameters below which a rank keeps gathered weights from forward to backward: 256 MiB in fp32. Gathering them again
#: costs small models a quarter of a step (three processes over gloo, width 192); once they are kept, a unit for each
#: block would only mean more collectives.
KEEP_GATHERED = 2**26
#: Bytes of gradients that unsharded replicas send at once: torch's DDP has the same default.
BUCKET = 25 * 2**20
#: Elements of a worker whose state a GPU has at once while another memory keeps it (512 MiB of Adam's), and of bf16
#: weights that have fp32 copies at once while they are updated.
OFFLOADED, STOOD_IN = 2**26, 2**24
#: Windows of a forward pass of an evaluation, and on a GPU its logits: bound memory; change no result beyond rounding.
EVAL_CHUNK, EVAL_LOGITS = 96, 2**28
#: Tokens of a window up to which fast kernels make attention in pieces; measured with heads of 32 and 64.
IN_PIECES = 512
#: A worker process before it has a model (Python, torch, Ray); resident bytes, measured.
PROCESS_BYTES = 450 * 2**20


def evaluated_windows(run: Run, *, gpu: bool) -> int:
    """Windows of one forward pass of an evaluation."""
    bound = EVAL_LOGITS // (run.model.context * run.model.vocab) if gpu else EVAL_CHUNK
    return max(1, min(EVAL_CHUNK, bound))


@dataclass(frozen=True)
class Sizes:
    """Numbers of elements, but for `state_bytes` (of all workers together) and FLOPs.

    `block` has the parameters of the largest of `depth` blocks, `blocks` those of all; `products` those entries by
    which a token is multiplied, the readout's included; `readout` those of the readout's matrix; `largest` those of the
    largest tensor. `update` is what the optimizer holds besides its state while it updates: "none", "rows" (a tensor of
    a worker's rows, as torch's foreach), or "matrices" (a few of the largest). `built_whole`: each worker builds all of
    the model in its host's memory, before they share it out.
    """

    parameters: int
    blocks: int
    block: int
    depth: int
    products: int
    readout: int
    largest: int
    state_bytes: int
    flops_per_token: float
    passes: float = 1.0
    update: str = "none"
    estimated: bool = (
        False  # its blocks are not the package's own, so what they keep is a guess by their parameters
    )
    built_whole: bool = False

    @property
    def outside(self) -> int:
        """Parameters outside of the blocks: embedding, readout, last norm."""
        return self.parameters - self.blocks


@dataclass(frozen=True)
class Place:
    """`nodes` of `per_node` workers each, one to a device."""

    nodes: int
    per_node: int

    @property
    def workers(self) -> int:
        return self.nodes * self.per_node

    @classmethod
    def parse(cls, text: str) -> Place:
        """From "4x8", or "8" for one node; ConfigError otherwise."""
        nodes, _, each = text.partition("x") if "x" in text else ("1", "x", text)
        if not (nodes.isdecimal() and each.isdecimal() and int(nodes) and int(each)):
            raise ConfigError(f'--nodes must be nodes x devices, such as "4x8", but got {text!r}')
        return cls(int(nodes), int(each))

    def __str__(self) -> str:
        return f"{self.nodes}x{self.per_node}"


@dataclass(frozen=True)
class Groups:
    """Workers in `replicas` groups; the `shards` workers of a group hold one model together."""

    replicas: int
    shards: int

    @classmethod
    def of(cls, run: Run, place: Place) -> Groups:
        """As the run's strategy groups them; ConfigError for replicas that do not divide the workers."""
        workers, compute = place.workers, run.compute
        if compute.strategy == "ddp":
            return cls(workers, 1)
        if compute.strategy != "hsdp":
            return cls(1, workers)
        replicas = compute.replicas or place.nodes
        if workers % replicas:
            raise ConfigError(
                f"`compute.replicas` must divide the {workers} workers, but got {replicas}; use 0: one replica a node"
            )
        return cls(replicas, workers // replicas)
