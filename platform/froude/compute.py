"""How a step is computed: what saves memory or time, and changes a loss by rounding at most."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from froude.section import ConfigError, Section, drop_later

Strategy = Literal["fsdp", "ddp", "zero1", "zero2", "hsdp"]
Checkpointing = Literal["none", "blocks", "sqrt", "selective"]
Kernels = Literal["plain", "fast"]


class Compute(Section):
    """A run's table `[compute]`; sizes in tokens."""

    section: ClassVar[str] = "compute"
    LATER: ClassVar[tuple[str, ...]] = (
        "strategy",
        "replicas",
        "checkpointing",
        "offload",
        "loss_chunk",
        "kernels",
        "threads",
    )
    #: What may differ without making it another run: where tensors lie, what is computed twice, by how many threads.
    UNFINGERPRINTED: ClassVar[tuple[str, ...]] = (
        "strategy",
        "replicas",
        "checkpointing",
        "offload",
        "threads",
    )
    strategy: Strategy = Field(
        default="fsdp",
        description="what workers share out: fsdp weights, gradients and optimizer state (ZeRO-3); zero2 gradients and "
        "state; zero1 the state; ddp nothing; hsdp as fsdp within each of several replicas",
    )
    replicas: int = Field(
        default=0, ge=0, description="of hsdp: groups of workers that each hold a whole model; 0: one a node"
    )
    checkpointing: Checkpointing = Field(
        default="none",
        description="activations that backward computes again: none; those of all blocks; sqrt: those between every "
        "sqrt(depth)-th block; selective: all but matrix products and attention",
    )
    offload: bool = Field(default=False, description="whether the optimizer's state lies in the CPU's memory")
    loss_chunk: int = Field(
        default=0, ge=0, description="tokens whose logits exist at once; 0: those of a whole forward pass"
    )
    kernels: Kernels = Field(
        default="plain",
        description="fast: on a CPU attention in pieces for short windows, and in fp32 the library's quicker matrix "
        "products, where they are exact enough",
    )
    threads: int = Field(
        default=0,
        ge=0,
        description="threads of a worker on a CPU, which reserves as many CPUs; 0: one, or in a run of several workers "
        "as many as OMP_NUM_THREADS says",
    )

    @property
    def identity(self) -> dict[str, Any]:
        """What of it makes another run."""
        content = self.model_dump(mode="json", exclude={*self.UNFINGERPRINTED})
        drop_later(self, content)
        return content

    @model_validator(mode="after")
    def _replicated(self) -> Self:
        if self.replicas and self.strategy != "hsdp":
            raise ConfigError(
                f'`compute.replicas` is for `compute.strategy` "hsdp", but got {self.replicas} with '
                f'"{self.strategy}"; leave it out'
            )
        return self
