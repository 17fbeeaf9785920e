"""How a step is computed: what saves memory or time, and changes a loss by rounding at most."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from froude.section import ConfigError, Section, drop_later

Strategy = Literal["fsdp", "ddp", "zero1", "zero2", "hsdp"]
Checkpointing = Literal["none", "blocks", "sqrt", "selective"]


class Compute(Section):
    """A run's table `[compute]`; sizes in tokens."""

    section: ClassVar[str] = "compute"
    LATER: ClassVar[tuple[str, ...]] = (
        *("strategy", "replicas", "checkpointing", "offload", "loss_chunk"),
        "compile",
    )
    #: What may differ without making it another run: where tensors lie, and what is computed twice.
    UNFINGERPRINTED: ClassVar[tuple[str, ...]] = ("strategy", "replicas", "checkpointing", "offload")
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
    compile: Literal["none", "blocks", "graphs"] = Field(
        default="none",
        description="blocks: each block by torch.compile; graphs: and replayed as a CUDA graph, on one GPU",
    )

    @property
    def identity(self) -> dict[str, Any]:
        """What of it makes another run."""
        content = self.model_dump(mode="json", exclude={*self.UNFINGERPRINTED})
        drop_later(self, content)
        return content

    def check_compile(self, device: str, most: int) -> None:
        """ConfigError if a run on such a device, on up to so many workers, can't have its blocks compiled so."""
        if self.compile == "graphs" and (device == "cpu" or most > 1):
            raise ConfigError(
                '`compute.compile` "graphs" is for one worker with a GPU, but got '
                f'{f"{most} workers" if most > 1 else "a cpu"}; use "blocks" or leave it out'
            )

    @model_validator(mode="after")
    def _replicated(self) -> Self:
        if self.replicas and self.strategy != "hsdp":
            raise ConfigError(
                f'`compute.replicas` is for `compute.strategy` "hsdp", but got {self.replicas} with '
                f'"{self.strategy}"; leave it out'
            )
        return self
