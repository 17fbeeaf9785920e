"""How a step is computed: what saves memory or time, and changes a loss by rounding at most."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from froude.optimizers.spec import Spec
from froude.section import ConfigError, Section, drop_later

Strategy = Literal["fsdp", "ddp", "zero1", "zero2", "hsdp"]
Checkpointing = Literal["none", "blocks", "sqrt", "selective"]
#: bf16, fp16: autocast with fp32 weights; bf16_stochastic: weights in bf16, rounded stochastically; fp8: products of
#: hidden matrices in fp8, all else as bf16.
Precision = Literal["fp32", "tf32", "bf16", "bf16_stochastic", "fp16", "fp8"]
Compile = Literal["none", "blocks", "graphs"]
Kernels = Literal["plain", "fast"]


class Compute(Section):
    """A run's table `[compute]`; sizes in tokens."""

    section: ClassVar[str] = "compute"
    LATER: ClassVar[tuple[str, ...]] = (
        *("strategy", "replicas", "checkpointing", "offload", "loss_chunk"),
        *("compile", "kernels", "threads"),
    )
    #: What may differ without making it another run: where tensors lie, what is computed twice, by how many threads.
    UNFINGERPRINTED: ClassVar[tuple[str, ...]] = (
        *("strategy", "replicas", "checkpointing", "offload"),
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
    compile: Compile = Field(
        default="none",
        description="blocks: each block by torch.compile; graphs: and replayed as a CUDA graph, on one GPU",
    )
    kernels: Kernels = Field(
        default="plain",
        description="fast: on a CPU attention in pieces for short windows, and in fp32 the library's quicker matrix "
        "products, where they are exact enough",
    )
    threads: int = Field(
        default=0,
        ge=0,
        description="threads of a worker on a CPU, which reserves as many CPUs; 0: one, or in a target run as many as "
        "OMP_NUM_THREADS says",
    )

    @property
    def identity(self) -> dict[str, Any]:
        """What of it makes another run."""
        content = self.model_dump(mode="json", exclude={*self.UNFINGERPRINTED})
        drop_later(self, content)
        return content

    def check_spec(self, spec: Spec) -> None:
        """ConfigError if the optimizer of this spec can't have it."""
        if self.loss_chunk and spec.curvature:
            raise ConfigError(
                f"`compute.loss_chunk` must be 0 with {spec.name}, whose estimates need all logits at once, but got "
                f"{self.loss_chunk}; leave it out, or use another optimizer"
            )
        if spec.curvature == "hutchinson" and (self.checkpointing != "none" or self.compile != "none"):
            key = "checkpointing" if self.checkpointing != "none" else "compile"
            raise ConfigError(
                f'`compute.{key}` must be "none" with {spec.name}, which differentiates a backward pass, but got '
                f'"{getattr(self, key)}"; leave it out, or use sophia_g'
            )

    def check_precision(self, precision: str, context: int) -> None:
        """ConfigError if a run of this precision and context, in tokens, can't have it."""
        if precision == "fp8" and context % 16:
            raise ConfigError(
                '`model.context` must be a multiple of 16 with `precision` "fp8", whose products go over tokens, but '
                f"got {context}; choose {context // 16 * 16 or 16}, or use bf16"
            )
        if self.checkpointing != "none" and precision == "fp8":
            raise ConfigError(
                '`compute.checkpointing` must be "none" with `precision` "fp8", whose products backward would compute '
                f'again in bf16, but got "{self.checkpointing}"; use "bf16", or more devices'
            )
        if self.offload and precision == "bf16_stochastic":
            raise ConfigError(
                '`compute.offload` must be false with `precision` "bf16_stochastic", whose weights are stood in for '
                "during a step, but got true; leave one of them out"
            )

    def check_strategy(self, reduction: str, least: int, most: int) -> None:
        """ConfigError if a run of this reduction, on so many workers, cannot lie on them like this."""
        if reduction == "exact" and self.strategy != "fsdp" and most > 1:
            raise ConfigError(
                '`compute.strategy` must be "fsdp" in an exact run of several workers, which adds up slots where FSDP '
                f'shares gradients out, but got "{self.strategy}"; leave it out, or use reduction = "fast"'
            )
        if self.replicas > 1 and most > 1 and (least < most or most % self.replicas):
            workers = most if least == most else f"{least} to {most}"
            raise ConfigError(
                f"`compute.replicas` must divide the number of workers at all times, but got {self.replicas} with "
                f"{workers} workers; use 0: one replica a node, or a fixed number of workers that it divides"
            )

    def check_device(self, device: str, most: int, where: str = "") -> None:
        """ConfigError if a run on such a device, `where` in words, on up to so many workers, can't be computed so."""
        if self.kernels == "fast" and device == "cuda":
            there = where or '`device` is "cuda"'
            raise ConfigError(f'`compute.kernels` "fast" is for CPUs, but {there}; set it to "plain"')
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


def check_precision(precision: Precision, device: str, optimizer: Spec) -> None:
    """ConfigError for a precision that a run on such a device, or with such an optimizer, cannot have."""
    if precision in ("tf32", "fp8") and device == "cpu":
        raise ConfigError(
            f'`precision` "{precision}" needs a GPU, but `device` is "cpu"; use "fp32" or "bf16", or another device'
        )
    if precision == "bf16_stochastic" and optimizer.average:
        raise ConfigError(
            f'`precision` must not be "bf16_stochastic" with {optimizer.name}, which evaluates an average of its '
            'weights that bf16 is too coarse for; use "bf16"'
        )
    if precision in ("bf16_stochastic", "fp16") and optimizer.curvature:
        raise ConfigError(
            f'`precision` must not be "{precision}" with {optimizer.name}, whose estimates of the curvature are of '
            'gradients in fp32; use "bf16"'
        )
