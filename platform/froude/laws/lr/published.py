"""Published exponents of the best rate, decay and beta2, to stand beside measured ones. They contradict one another."""

from typing import NamedTuple

import numpy as np

#: Batch in sequences and the beta2 found best there (marin-community/marin#4567; two where a range is given).
MARIN_BETA2 = ((64, 0.995), (128, 0.995), (256, 0.97), (256, 0.99), (512, 0.95))


class Published(NamedTuple):
    """best `setting` ∝ `over`^`value`; `name` is short, `source` where it is from, and `note` what it is of."""

    setting: str
    over: str
    value: float
    name: str
    source: str
    note: str = ""


def half_life_exponent(table: tuple[tuple[int, float], ...] = MARIN_BETA2) -> float:
    """Return the exponent over batch of the half-life batch · ln(1/2) / ln(beta2), by least squares in logs."""
    batch, beta2 = np.array(table).T
    return float(np.polyfit(np.log(batch), np.log(batch * np.log(0.5) / np.log(beta2)), 1)[0])


PUBLISHED = (
    Published("lr", "tokens", -0.32, "Bjorck", "Bjorck et al. 2409.19913", "fixed batch"),
    Published("lr", "tokens", -0.32, "HyperP", "HyperP 2603.28743", "MuonH"),
    Published("lr", "tokens", -0.351, "2601.05049", "2601.05049", "mixtures of experts, WSD"),
    Published(
        "lr", "tokens", -0.3, "marin", "marin-community/marin", "its default, with the root of the batch"
    ),
    Published("lr", "tokens", -0.395, "marin", "marin-community/marin#5951, #6074", "with width^-0.15"),
    Published("lr", "tokens", -0.25, "marin", "marin-community/marin#7856", "-0.25 to -0.33"),
    Published("lr", "tokens", 0.307, "Step Law", "Li et al. 2503.04715", "its batch grows as tokens^0.571"),
    Published(
        "lr",
        "tokens",
        0.13,
        "Step Law refitted",
        "the runs of Li et al. 2503.04715",
        "median at fixed size and batch, quartiles -0.09 and 0.23; weight decay fixed, so that its timescale moves",
    ),
    Published("lr", "batch", 0.5, "root", "Malladi et al. 2205.10287", "Adam, far below the critical batch"),
    Published(
        "lr", "batch", 0.6, "Step Law, small", "the runs of Li et al. 2503.04715", "up to its best batch"
    ),
    Published("lr", "batch", 0.26, "Step Law, all", "the runs of Li et al. 2503.04715", "over all batches"),
    Published(
        "timescale", "tokens", -0.527, "Power Lines", "Bergsma et al. 2505.13738", "tokens per parameter"
    ),
    Published("half_life", "batch", 0.0, "constant", "Marek et al. 2507.07101", "1 to 1024 sequences"),
    Published(
        "half_life",
        "batch",
        half_life_exponent(),
        "marin",
        "marin-community/marin#4567",
        "from its best beta2",
    ),
    # Not measured by a stage, which has one width.
    Published("lr * weight_decay", "width", 0.0, "constant", "2510.19093", "at one horizon"),
    Published("lr * weight_decay", "width", -0.5, "inverse root", "2510.15262"),
    Published(
        "lr * weight_decay", "width", -1.0, "inverse", "2512.05620", "tokens in proportion to parameters"
    ),
)


def published(setting: str, over: str) -> tuple[Published, ...]:
    """Return those of one setting over one size, in the order of their values."""
    found = [each for each in PUBLISHED if (each.setting, each.over) == (setting, over)]
    return tuple(sorted(found, key=lambda each: each.value))
