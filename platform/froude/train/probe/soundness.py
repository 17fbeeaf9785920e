"""Whether a model keeps the contract of `froude.train.api.Model`, found on its smallest run.

It is built, its parameters are perturbed (behind a readout of zeros nothing could be seen), and it is given a few
sequences of random tokens, on the CPU.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from froude.config import ConfigError, Run
from froude.train import api
from froude.train.exact.reduce import refuse_hooks
from froude.train.memory import weights
from froude.train.optimizers.fused import fused
from froude.train.parallel import refuse_scalars
from froude.train.precision.products import autocast
from froude.user_code import Raised, call_user, load

#: The largest move where a change must move nothing, as a share of its moves elsewhere. Rounding alone moves nothing:
#: the tensors compared come from the same kernels in the same places of a batch.
TOLERANCE = 1e-5
#: The largest difference of logits that are computed in another order, as a share of the largest of them.
ROUNDING = 1e-4
EXPERTS = re.compile(r"[Ee]xpert|Mo[eE](?![a-z])|\bmoe\b")  # in the name of a class or a parameter
SEQUENCES, SHORTEST, LONGEST = 4, 8, 256  # of a batch; tokens of a sequence
#: At most about this many FLOPs for a batch's forward pass, and this many numbers in its logits: tens of milliseconds.
FLOPS, LOGITS = 5e8, 2**25


def check_model(run: Run, skip: Collection[str] = (), *, several: bool = False) -> list[str]:
    """Build the run's model and look at it; notes. ConfigError for what breaks the contract.

    `several`: another run of the same model will have several workers, if this one has not.
    """
    several = several or run.max_workers > 1
    context = run.model.context
    flops = float(api.build_model(run, "meta").flops_per_token())  # type: ignore[operator]
    tokens = min(3 * FLOPS / flops, LOGITS / run.model.vocab)
    short = min(context, max(SHORTEST, min(LONGEST, int(tokens) // SEQUENCES)))
    # Not with torch's deterministic algorithms, which exact runs use: to ask for them takes seconds of imports.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.seed)
        try:
            return _Look(run, short).all(skip, several)
        except Raised:
            if short == context:
                raise
        return _Look(run, context).all(skip, several)  # some models take no shorter sequence


class _Look:
    """A model of a run, with perturbed parameters, on the CPU; and a batch for it."""

    def __init__(self, run: Run, context: int) -> None:
        self.run, self.name = run, run.model.factory
        self.model: nn.Module = self._built()
        self.generator = torch.Generator().manual_seed(run.seed)
        self.tokens = self.drawn(SEQUENCES, context)
        self.tokens[0, 0] = run.model.vocab - 1  # a table that is too short for it shows

    @property
    def late(self) -> bool:
        """Whether several workers build the model without weights."""
        return weights.come_late(self.run, load(self.name), workers=2)

    def _built(self, workers: int = 1) -> nn.Module:
        model: nn.Module = call_user(f"building {self.name}", api.build_model, self.run, "cpu", workers)
        return model

    def drawn(self, sequences: int, context: int) -> Tensor:
        return torch.randint(self.run.model.vocab, (sequences, context), generator=self.generator)

    def refuse(self, rule: str, value: str, remedy: str) -> NoReturn:
        raise ConfigError(f"{rule}, but {self.name} {value}; {remedy}")

    def all(self, skip: Collection[str], several: bool) -> list[str]:
        if self.run.reduction == "exact" or several:
            refuse_hooks(self.model)
        if several:
            refuse_scalars(self.model)
        fused(self.model)
        if "dense" not in skip:
            self.dense()
        lasting = lasting_state(self.model)
        at_first = self.copied()
        again = self.built_alike(lasting) if "state" not in skip else None
        self.perturb()
        self.model.train()
        first = self.logits("training", check=True)
        if again is not None and self.late:
            self.computes_alike(again)
        begun = self.copied()
        second = self.logits("training")
        if self.run.reduction == "exact" and "random" not in skip:
            self.repeats(first, second)
        if "gradients" not in skip:
            self.gradients(second)
        if "state" not in skip:
            # What does not last may be filled once, as a cache is.
            self.unchanged({**begun, **{name: at_first[name] for name in lasting if name in at_first}})
        self.model.eval()
        with torch.no_grad():
            whole = self.logits("fp32")
            if self.run.compute.loss_chunk:
                self.in_two(whole)
            if "independent" not in skip:
                self.independent(whole)
            if "causal" not in skip and self.tokens.shape[1] > 1:
                self.causal(whole)
        told = list(getattr(self.model, "notes", list)())
        return told + (
            [
                f"{self.name} has constant buffers ({_some(lasting)}), which are built again with the model: they "
                "are in no checkpoint or export"
            ]
            if lasting
            else []
        )

    def dense(self) -> None:
        """A mixture of experts says so by what it declares, or by the names of its parts."""
        rule = "a proxy must be dense, since no law here is for a mixture of experts"
        declared = getattr(self.model, "active_parameters", None)
        if declared is not None:
            active = (
                call_user(f"active_parameters() of {self.name}", declared) if callable(declared) else declared
            )
            counts = api.count_parameters(self.model)
            if active not in (counts.params, counts.params_with_embeddings):
                value = f"has {active} active of {counts.params} parameters"
                self.refuse(rule, value, "forecast a dense model")
        parts = (type(module).__name__ for module in self.model.modules())
        names = [name for name, _ in self.model.named_parameters()]
        if called := [name for name in dict.fromkeys([*parts, *names]) if EXPERTS.search(name)]:
            self.refuse(
                rule, f"has {_some(called)}", "forecast a dense model, or skip check `dense` if this is one"
            )

    def buffers(self) -> dict[str, Tensor]:
        return dict(self.model.named_buffers())

    def copied(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self.model.named_buffers()}

    def perturb(self) -> None:
        """Add noise of half a parameter's own size, or of a linear layer's usual one where it is zero."""
        with torch.no_grad():
            for parameter in self.model.parameters():
                size = float(parameter.square().mean().sqrt()) / 2
                fan_in = parameter.shape[-1] if parameter.ndim else 1
                noise = torch.randn(parameter.shape, generator=self.generator)
                parameter.add_(noise * (size or fan_in**-0.5))

    def logits(self, mode: str, tokens: Tensor | None = None, *, check: bool = False) -> Tensor:
        """Of a forward pass in the run's precision in training, else in fp32, where rounding hides nothing."""
        given = self.tokens if tokens is None else tokens
        run = self.run if mode == "training" else self.run.replace(precision="fp32", name=self.run.name)
        with autocast(run, given.device):
            found = call_user(
                f"forward of {self.name} on int64 tokens {list(given.shape)}",
                self.model,
                given,
                remedy="correct it, or skip check `forward` if it only runs on other hardware",
            )
        if check:
            self.are_logits(found)
        return found  # type: ignore[no-any-return]

    def are_logits(self, found: Any) -> None:
        rule, remedy = "forward must return logits [windows, context, vocab]", "return the logits alone"
        if not isinstance(found, Tensor):
            keys = f" of {_some(found)}" if isinstance(found, Mapping) else ""
            field = " (in transformers: `.logits`)" if hasattr(found, "logits") else ""
            self.refuse(rule, f"returned {type(found).__name__}{keys}", f"{remedy}{field}")
        wanted = (*self.tokens.shape, self.run.model.vocab)
        if found.shape != wanted or not found.is_floating_point():
            remedy = "return a logit for each token of the vocabulary"
            if found.shape[:2] == wanted[:2] and found.ndim == 3:
                remedy = f"set `model.vocab` to {found.shape[2]}, or correct the readout"
            self.refuse(f"{rule} = {list(wanted)}", f"returned {found.dtype} {list(found.shape)}", remedy)
        if not torch.isfinite(found).all():
            self.refuse(
                "logits must be finite",
                "returned some that are not",
                "look for a division, a logarithm or a mask",
            )

    def in_two(self, whole: Tensor) -> None:
        """What a loss in chunks trains is what forward computes."""
        found = self.model.logits(self.model.features(self.tokens))  # type: ignore[operator]
        near = (
            found.shape == whole.shape and float((found - whole).abs().max() / whole.abs().max()) < ROUNDING
        )
        if not near:
            self.refuse(
                "logits(features(tokens)) must be what forward returns, with `compute.loss_chunk`",
                "returned others",
                "do there all that is done to logits, and move what the rest does into features",
            )

    def repeats(self, first: Tensor, second: Tensor) -> None:
        if not torch.equal(first, second):
            self.refuse(
                'a run with `reduction` = "exact" must compute the same twice',
                f"gave logits that differ by up to {float((first - second).detach().abs().max()):.2g}",
                "set its dropout to 0 (in transformers: resid_pdrop, embd_pdrop, attn_pdrop, attention_dropout, "
                "hidden_dropout), or "
                'reduction to "fast"',
            )

    def gradients(self, logits: Tensor) -> None:
        targets = self.drawn(*self.tokens.shape)
        loss = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
        if loss.requires_grad:
            loss.backward()
        without = [name for name, p in self.model.named_parameters() if p.requires_grad and p.grad is None]
        if without:
            self.refuse(
                "the loss must have a gradient for each parameter",
                f"has none for {_some(without)}",
                "use them in forward, leave them out, or freeze them with requires_grad_(False)",
            )

    def built_alike(self, lasting: Mapping[str, Any]) -> nn.Module:
        """Every worker and every attempt builds the model by itself; several do so by `initial` where it has one."""
        again = self._built(workers=2)
        call_user(f"initial() of {self.name}", weights.maker(again), again)
        here, there = dict(self.model.named_parameters()), dict(again.named_parameters())
        held, holds = {**self.buffers(), **lasting}, {**dict(again.named_buffers()), **lasting_state(again)}
        odd = [name for name in {**here, **there} if name not in here or name not in there]
        odd += [name for name in here if name in there and not _same(here[name], there[name])]
        odd += [name for name in held if name not in holds or not alike(held[name], holds[name])]
        if odd:
            self.refuse(
                "a model must be the same whenever it is built for a run",
                f"differs in {_some(odd)} when built {'by its `initial`' if self.late else 'twice'}",
                "have `initial` give what the constructor does"
                if self.late
                else "draw with torch's own generator, which the run's seed sets, or from a seed of your own",
            )
        return again

    @torch.no_grad()
    def computes_alike(self, again: nn.Module) -> None:
        """With the same weights; what the constructor draws besides them can't be seen otherwise."""
        for mine, other in zip(self.model.parameters(), again.parameters(), strict=True):
            other.copy_(mine)
        again.eval()
        self.model.eval()
        found = call_user(f"forward of {self.name}, built by its `initial`", again, self.tokens)
        if not torch.equal(self.model(self.tokens), found):
            self.refuse(
                "a model must be the same whenever it is built for a run",
                "computes other logits of the same weights when built by its `initial`",
                "draw nothing but weights from torch's own generator, which stands elsewhere without them, or leave "
                "`initial` out",
            )
        self.model.train()

    def unchanged(self, before: Mapping[str, Tensor]) -> None:
        now = self.buffers()
        odd = [name for name, value in before.items() if name not in now or not alike(value, now[name])]
        if odd:
            self.refuse(
                "a model's state must be its parameters, which alone go into checkpoints",
                f"changes buffer {_some(odd)} in training",
                "use a layer without running state (LayerNorm, RMSNorm), or a parameter",
            )

    def independent(self, whole: Tensor) -> None:
        others = self.tokens.clone()
        others[1:] = (others[1:] + 1 + self.drawn(*others[1:].shape) % max(1, self.run.model.vocab - 1)) % (
            self.run.model.vocab
        )
        moved = (self.logits("fp32", others) - whole).abs()
        theirs, own = float(moved[1:].max()), float(moved[0].max())
        if not own <= TOLERANCE * theirs:
            self.refuse(
                "a sequence's logits must not depend on the other sequences of its batch",
                f"moves them {own / theirs if theirs else math.inf:.2g} times as far as those move when they change",
                "normalise within a sequence (LayerNorm, RMSNorm)",
            )

    def causal(self, whole: Tensor) -> None:
        """Change one token at four places, none the first of an even stretch, each in a sequence of its own."""
        length = self.tokens.shape[1]
        places = [min(i * length // SEQUENCES + 1, length - 1) for i in range(SEQUENCES - 1)] + [length - 1]
        for row, t in enumerate(places):
            changed = self.tokens.clone()
            changed[row, t] = (changed[row, t] + 1) % self.run.model.vocab
            moved = (self.logits("fp32", changed) - whole)[row].abs().amax(-1)
            before, after = float(moved[:t].max()), float(moved[t:].max())
            if not after > 0:
                self.refuse(
                    "logits must depend on the tokens",
                    f"gives the same ones when token {t} changes",
                    "use the tokens that forward is given",
                )
            if not before <= TOLERANCE * after:
                self.refuse(
                    "logits must not depend on later tokens",
                    f"moves those before token {t} {before / after:.2g} times as far as those after it when it changes",
                    "give its attention a causal mask",
                )


def lasting_state(model: nn.Module) -> dict[str, Any]:
    """What the model's state_dict has besides parameters: buffers that are to last, and extra state."""
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return {name: value for name, value in model.state_dict().items() if name not in parameters}


def _same(one: nn.Parameter, other: nn.Parameter) -> bool:
    return alike(one, other) and one.requires_grad == other.requires_grad


def alike(one: Any, other: Any) -> bool:
    """Whether two values are the same bits; NaN is like NaN."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        both_nan = one.isnan() & other.isnan()
        return bool(((one == other) | both_nan).all())
    return type(one) is type(other) and bool(one == other)


def _some(names: Iterable[str], most: int = 4) -> str:
    """The first few names."""
    found = [str(name) for name in names]
    return ", ".join(found[:most]) + (f" and {len(found) - most} more" if len(found) > most else "")
