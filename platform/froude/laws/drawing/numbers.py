"""Numbers on figures: short, as their readers say them."""


def short(value: float) -> str:
    """Write a number as 12.3k, 4.56M, 7B; from 1e15 on, where FLOPs are counted, as 3e+17."""
    if abs(value) >= 1e15:
        return f"{value:.3g}"
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"
