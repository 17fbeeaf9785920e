"""What the curves of the sizes say against their joint fit: no parabolas, no common curvature, optima on no line."""

import math
from dataclasses import dataclass

import numpy as np

from froude.laws.lr.curve import QUADRATIC_BIAS
from froude.laws.lr.quadratic import Quadratic, least_squares, own_design
from froude.laws.stats import uncertainty
from froude.laws.stats.frames import Array
from froude.laws.stats.results import Estimate

# A best loss of fewer standard deviations about the fit is next to zero, where a curve is no parabola: it falls steeply
# and is level then. Sweeps of language models have a hundred; 107 made-up ones that end next to zero had up to six.
CLEAR_OF_ZERO = 10
ROUNDING = 1e-9  # of the loss: what differs by less is the same


@dataclass(frozen=True, eq=False)
class Fitted:
    """The rows of a joint fit: `x` is ln lr less `center`, `y` the loss, `sizes` what `over` is, one of `widths`."""

    x: Array
    y: Array
    sizes: Array
    widths: tuple[float, ...]
    over: str
    center: float

    def contradictions(self, line: Quadratic, slope: Estimate) -> tuple[str, ...]:
        """Why the line, whose slope this is, is not what the curves by themselves say; nothing if it is."""
        return self._near_zero(line) + self._bent(slope) + self._off_line(line, slope)

    def _near_zero(self, line: Quadratic) -> tuple[str, ...]:
        best = float(self.y.min())
        if best >= CLEAR_OF_ZERO * line.noise:
            return ()
        what = f"losses fall to {best:.2g} and scatter by {line.noise:.2g} about the joint fit"
        return (f"{what}: a curve that falls to zero is no parabola",)

    def _bent(self, slope: Estimate) -> tuple[str, ...]:
        """Say so if the curvature that the slope takes to be common is not, and the slope differs without it.

        Parabolas of their own place optima too badly for an estimate, but show which way the common one leans.
        """
        x, n = self.x, len(self.widths)
        floors = (self.sizes[:, None] == np.array(self.widths)).astype(np.float64)
        own = least_squares(np.column_stack([floors, floors * x[:, None], floors * x[:, None] ** 2]), self.y)
        common = least_squares(own_design(x, self.sizes, self.widths), self.y)
        if own is None or common is None:
            return ()
        gained, noise = common.squares - own.squares, max(own.noise, ROUNDING * float(self.y.max()))
        if not uncertainty.beyond_noise(gained, n - 1, noise**2, own.dof):
            return ()
        lean = ""
        if bool(np.all(own.beta[2 * n :] > 0)):
            optima = -own.beta[n : 2 * n] / (2 * own.beta[2 * n :])
            without = float(np.polyfit(np.log(self.widths), optima, 1)[0])
            if slope.low <= without <= slope.high:
                return ()
            lean = f", and is {without:+.2f} without"
        return (f"the curvature differs between {self.over}s; the slope rests on a common one{lean}",)

    def _off_line(self, line: Quadratic, slope: Estimate) -> tuple[str, ...]:
        """Say so, with all optima, if they do not lie on a line; noise is what is left about optima of their own."""
        own = least_squares(own_design(self.x, self.sizes, self.widths), self.y)
        if own is None or own.dof < 1:
            return ()
        n, logs = len(self.widths), np.log(self.widths)
        optima = -own.beta[n : 2 * n] / (2 * own.beta[-1])
        by_slopes = np.column_stack([np.zeros((n, n)), np.eye(n), 2 * optima])
        gradient = -by_slopes / (2 * own.beta[-1])
        if not off_line(optima, gradient @ own.covariance @ gradient.T, logs[:, None], own.dof):
            return ()
        middle, _ = line.ratio(line.unit(n))
        named = []
        for i in np.argsort(logs):
            at = math.exp(self.center + float(optima[i]))
            on = math.exp(self.center + middle + slope.value * float(logs[i] - logs.mean()))
            named.append(f"{at:.3g} at {self.over} {self.widths[i]:g} (line: {on:.3g})")
        return (f"the best rates do not lie on a line: {', '.join(named)}",)


def off_line(optima: Array, covariance: Array, sizes: Array, dof: int) -> bool:
    """Whether optima, in ln, are no linear function of `sizes`, in ln, a column each (F test, `dof` of the noise).

    What a curve's shape may move an optimum by counts as error, as in `froude.laws.exponent`: where noise is small, an
    optimum a few hundredths off would else be a contradiction, whatever little it costs.
    """
    design = np.column_stack([np.ones(optima.size), sizes])
    root = np.linalg.cholesky(covariance + (QUADRATIC_BIAS / 2) ** 2 * np.eye(optima.size))
    white, y = np.linalg.solve(root, design), np.linalg.solve(root, optima)
    left = y - white @ np.linalg.lstsq(white, y)[0]
    return uncertainty.beyond_noise(
        float(left @ left), optima.size - int(np.linalg.matrix_rank(design)), 1.0, dof
    )
