"""What a forward pass leaves for its backward pass, and what logits take: bytes of one pass of a worker.

Of the package's block, counted tensor by tensor; with attention that stores no [T, T] (Dao et al. 2205.14135), but for
that in pieces on a CPU. The
count of a GPT block in 16 bits, s b h (34 + 5 a s / h) bytes (Korthikanti et al. 2205.05198, equation 2), differs by
that term, by dropout's masks, by the residual stream, which is fp32 here, and by SwiGLU in place of GELU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from froude.config import Run
from froude.hardware.sizes import IN_PIECES, Sizes, evaluated_windows

#: Precisions in which products are in 16 bits while weights and the residual stream are in 32; and in 16 as well.
AUTOCAST, NARROW_WEIGHTS = ("bf16", "fp16", "fp8"), ("bf16_stochastic",)
#: Bytes of a token and feature of a block that is not the package's: Korthikanti's 34 without dropout's masks (31), and
#: the residual stream, which is there twice, in fp32 (+ 4).
FOREIGN = 35.0


@dataclass(frozen=True)
class Kept:
    """A tensor that a block keeps of a token: elements, bytes of one; `product`: what a product or attention gave."""

    what: str
    elements: float
    width: float
    product: bool = False

    @property
    def bytes(self) -> float:
        return self.elements * self.width


def is_autocast(run: Run) -> bool:
    """Whether products read 16-bit copies of the weights."""
    return run.precision in AUTOCAST


def product_bytes(run: Run) -> int:
    """Bytes of what a matrix product reads and writes."""
    return 2 if run.precision in (*AUTOCAST, *NARROW_WEIGHTS) else 4


def weight_bytes(run: Run) -> int:
    """Bytes of weights and of the residual stream."""
    return 2 if run.precision in NARROW_WEIGHTS else 4


def in_pieces(run: Run, *, fused: bool) -> bool:
    """Whether blocks of the package's model store attention's weights [T, T], as train/kernels/attention.py does."""
    shape = run.model
    masked = shape.documents or (0 < shape.sliding_window < shape.context and not shape.global_every)
    short = shape.context <= IN_PIECES and shape.heads == shape.key_heads
    return run.compute.kernels == "fast" and short and not (fused or masked)


def of_a_block(run: Run, *, fused: bool) -> list[Kept]:
    """What a block of the package's model keeps of a token without checkpointing.

    `fused`: a norm is one kernel, as on a GPU; else it also keeps what it has before the gain, and both in fp32.
    """
    shape, a, r = run.model, product_bytes(run), weight_bytes(run) if fused else 4
    width, hidden = shape.width, round(shape.mlp_ratio * shape.width)
    heads = shape.heads
    keys = shape.key_heads * shape.head_dim
    norm = [] if fused else [Kept("norm before its gain", width, r)]
    projected = [Kept("queries, keys, values", width + 2 * keys, a, product=True)]
    sums = Kept("its log-sum-exp, by head", heads, 4, product=True)
    if in_pieces(run, fused=fused):  # which copies what it is given
        projected = [*(projected if shape.qk_norm else ()), Kept("values", keys, a)]
        sums = Kept("its weights, by head", heads * shape.context, a)
    found = [
        Kept("attention's input", width, r),
        *norm,
        Kept("normalised", width, a),
        *projected,
        Kept("queries and keys, rotated", width + keys, a),
        Kept("attention's output", width, a, product=True),
        sums,
        Kept("the MLP's input", width, r),
        *norm,
        Kept("normalised", width, a),
        Kept("gate and up", 2 * hidden, a, product=True),
        Kept("silu(gate)", hidden, a),
        Kept("silu(gate) * up", hidden, a),
    ]
    if shape.qk_norm:
        found.append(Kept("queries and keys before their gain", width + keys, a))
    return found


def bytes_of_a_block(run: Run, sizes: Sizes, *, fused: bool) -> float:
    """Bytes of a token; of a model that is not the package's by the parameters of its block, 12 h^2 (2205.05198)."""
    if sizes.estimated:
        return FOREIGN * product_bytes(run) / 2 * math.sqrt(sizes.block / 12)
    return sum(kept.bytes for kept in of_a_block(run, fused=fused))


@dataclass(frozen=True)
class Between:
    """Bytes of a token that all blocks hold when backward begins, and more while one block is computed again."""

    kept: float
    how: str
    again: float = 0.0
    again_how: str = ""


def between_passes(run: Run, sizes: Sizes, *, fused: bool) -> Between:
    """What checkpointing leaves between forward and backward.

    none: all of each block. blocks: each block's input (Chen et al. 1604.06174). sqrt: the inputs of segments of
    ceil(sqrt(L)) blocks, and those of the blocks of one segment. selective: each block's input and what products and
    attention gave (2205.05198, section 5). What a block computes again is there with its largest gradients, those of
    gate, up and their product.
    """
    depth, block = sizes.depth, bytes_of_a_block(run, sizes, fused=fused)
    width = math.sqrt(sizes.block / 12) if sizes.estimated else run.model.width
    entry = width * weight_bytes(run)
    hidden = product_bytes(run) * (4 * width if sizes.estimated else run.model.mlp_ratio * width)
    gradients = entry + 3 * hidden
    words = f"{entry:,.0f} of its input's gradient + 3 x {hidden:,.0f} of gate's and up's and their product's"
    scores, scores_how = _scores(run, sizes, fused=fused)
    if 2 * scores > 3 * hidden:
        gradients, words = entry + 2 * scores, f"{entry:,.0f} of its input's gradient + 2 x {scores_how}"
    match run.compute.checkpointing:
        case "blocks":
            kept, how, rest, rest_how = depth * entry, f"{depth} inputs x {entry:,.0f}", block, ""
        case "sqrt":
            segment = math.ceil(math.sqrt(depth))
            segments = -(-depth // max(segment, 1))
            how = f"({segments} segments + {segment} blocks of one) x {entry:,.0f}"
            kept, rest, rest_how = (segments + segment) * entry, block, ""
        case "selective":
            products, added = (
                _products(run, sizes, block),
                0.0 if sizes.estimated else width * product_bytes(run),
            )
            each = entry + products + 2 * added
            how = f"{depth} blocks x ({entry:,.0f} of the input + {products:,.0f} of products"
            how += f" + 2 x {added:,.0f} of what is added to the stream)" if added else ")"
            kept, rest, rest_how = depth * each, max(block - each, 0.0), f" - {each:,.0f} kept"
        case _:
            again = Between(depth * block, f"{depth} blocks x {block:,.0f}")
            return replace(again, again=2 * scores, again_how=f"2 x {scores_how}") if scores else again
    again_how = f"{block:,.0f} of a block{rest_how} + {words}" if rest else words
    return Between(kept, how, rest + gradients, again_how)


def _scores(run: Run, sizes: Sizes, *, fused: bool) -> tuple[float, str]:
    """Bytes of a token of attention's scores, as many as its weights, where a block has them at all."""
    if sizes.estimated or not in_pieces(run, fused=fused):
        return 0.0, ""
    heads, context, each = run.model.heads, run.model.context, product_bytes(run)
    return float(
        heads * context * each
    ), f"{each} bytes x {heads} heads x {context:,} of attention's gradients"


def masks(run: Run, sizes: Sizes, windows: int, *, fused: bool, kept: bool = True) -> tuple[float, str]:
    """Bytes of the package's masks on a CPU: booleans, and what attention makes of them, which blocks keep."""
    shape = run.model
    windowed = 0 < shape.sliding_window < shape.context
    if fused or sizes.estimated or not (windowed or shape.documents):
        return 0.0, "none"
    masked = sizes.depth
    if windowed and not shape.documents and shape.global_every:
        masked -= sizes.depth // shape.global_every
    many = windows if shape.documents else 1
    kinds = 2 if windowed and shape.documents and shape.global_every else 1
    blocks = masked if kept and run.compute.checkpointing == "none" else 1
    each = product_bytes(run)
    how = f"{many} x {shape.context:,} x {shape.context:,} pairs of tokens x ({kinds} + {each} bytes x {blocks} blocks)"
    return float(many * shape.context**2 * (kinds + each * blocks)), how


def _products(run: Run, sizes: Sizes, block: float) -> float:
    """Bytes of a token that a block keeps of what products and attention give."""
    if sizes.estimated:
        return block / 2
    return sum(each.bytes for each in of_a_block(run, fused=True) if each.product)


def outside_blocks(run: Run, *, fused: bool) -> float:
    """Bytes of a token: the last norm's input and outputs, and the token itself."""
    width, given = run.model.width, weight_bytes(run) if fused else 2 * 4
    return width * (given + product_bytes(run)) + 8


#: fp32 copies of the logits that are there at once: log_softmax's output, its gradient, that of the logits.
COPIES = 3
#: While they are only evaluated: the logits, and log_softmax's output.
COPIES_EVALUATED = 2


def logits(run: Run, sizes: Sizes, tokens: int) -> tuple[float, str]:
    """Bytes of a pass of so many tokens when its backward begins, chunked if the run says so."""
    # A z-loss has two more, the exponentials that its backward computes and its gradient.
    copies = COPIES + bool(run.model.softcap) + 2 * bool(run.model.z_loss)
    vocab, chunk = run.model.vocab, run.compute.loss_chunk
    at_once = min(chunk, tokens) if chunk else tokens
    found = 4.0 * copies * at_once * vocab
    how = f"4 bytes x {copies} copies x {at_once:,} tokens x {vocab:,} words"
    if not chunk:
        return found, how
    # The readout's gradient so far and a chunk's, and the features with their gradient.
    more = 2 * 4.0 * sizes.readout + 2.0 * product_bytes(run) * tokens * run.model.width
    how += f" + 2 x 4 bytes x {sizes.readout:,} of the readout's gradient"
    how += (
        f" + 2 x {product_bytes(run)} bytes x {tokens:,} tokens x {run.model.width:,} of features and theirs"
    )
    return found + more, how


def evaluated(run: Run, sizes: Sizes, *, fused: bool) -> tuple[float, str]:
    """Bytes of a pass of an evaluation, which keeps nothing: its logits, or a block's tensors where these are more."""
    windows = min(evaluated_windows(run, gpu=fused), run.eval_windows)
    tokens, w = windows * run.model.context, weight_bytes(run)
    at_once = min(run.compute.loss_chunk or tokens, tokens)
    copies = COPIES_EVALUATED + bool(run.model.softcap)
    given = 4.0 * copies * at_once * run.model.vocab + 3 * w * tokens * run.model.width
    how = f"4 bytes x {copies} copies x {at_once:,} tokens x {run.model.vocab:,} words"
    how += f" + 3 x {w} bytes x {tokens:,} tokens x {run.model.width:,} of the stream"
    block, scores = bytes_of_a_block(run, sizes, fused=fused), _scores(run, sizes, fused=fused)[0]
    if tokens * (block + scores) > given:
        given = tokens * (block + scores)
        how = f"{tokens:,} tokens x {block + scores:,.0f} of a block"
    masked, masked_how = masks(run, sizes, windows, fused=fused, kept=False)
    return given + masked, f"{how} + {masked_how}" if masked else how
