"""Charts as SVG text, without a plotting library."""

import colorsys
import math
from collections.abc import Sequence
from html import escape
from itertools import cycle, pairwise

import numpy as np

WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 14, 14, 40
INK, FAINT, ACCENT, SECOND = "#334155", "#e2e8f0", "#2563eb", "#ea580c"
SPEED_COLORS = ((0.0, (37, 99, 235)), (0.35, (14, 165, 160)), (0.65, (234, 179, 8)), (1.0, (220, 38, 38)))
"""Color of each fraction of the highest speed."""
CURVE_COLORS = (ACCENT, SECOND, "#16a34a", "#9333ea", "#0891b2", "#db2777", "#65a30d", "#475569", "#b45309")
"""Colors of the curves in a chart, in order."""


def speed_color(fraction: float) -> tuple[int, int, int]:
    """The color of a fraction of the highest speed: from blue at 0 through green and yellow to red at 1."""
    fraction = min(max(fraction, 0.0), 1.0)
    for (low, a), (high, b) in pairwise(SPEED_COLORS):
        if fraction <= high:
            t = (fraction - low) / (high - low)
            red, green, blue = (round(x + t * (y - x)) for x, y in zip(a, b, strict=True))
            return red, green, blue
    return SPEED_COLORS[-1][1]


def palette(fraction: float) -> tuple[int, int, int]:
    """The color at that fraction of the hue circle, at medium lightness."""
    red, green, blue = colorsys.hls_to_rgb(fraction, 0.42, 0.75)
    return round(255 * red), round(255 * green), round(255 * blue)


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers between `low` and `high`."""
    span = max(high - low, 1e-12)
    step = 10.0 ** math.floor(math.log10(span / count))
    step = next(step * m for m in (1, 2, 2.5, 5, 10) if span / (step * m) <= count)
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 10) for k in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times every power of ten between `low` and `high`."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [x for k in exponents for x in (1 * 10.0**k, 2 * 10.0**k, 5 * 10.0**k) if low <= x <= high]


def label(value: float) -> str:
    """The number with three digits, in thousands or millions where it is large."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:g}"


class Axes:
    """The axes of a chart with grid, ticks and names, and the transform from data to SVG coordinates."""

    def __init__(
        self, x: tuple[float, float], y: tuple[float, float], x_name: str, y_name: str, log_x: bool = False
    ) -> None:
        """With `log_x`, the x axis is logarithmic."""
        self.x_range, self.y_range, self.log_x = nonempty_range(*x), nonempty_range(*y), log_x
        self.parts: list[str] = []
        for value in log_ticks(*self.x_range) if log_x else ticks(*self.x_range):
            px = self.px(value)
            self.parts.append(f'<line x1="{px:.1f}" x2="{px:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" class="grid"/>')
            self.parts.append(f'<text x="{px:.1f}" y="{HEIGHT - BOTTOM + 16}" class="tick mid">{label(value)}</text>')
        for value in ticks(*self.y_range):
            py = self.py(value)
            self.parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{py:.1f}" y2="{py:.1f}" class="grid"/>')
            self.parts.append(f'<text x="{LEFT - 6}" y="{py + 4:.1f}" class="tick end">{label(value)}</text>')
        self.parts.append(f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 6}" class="name mid">{escape(x_name)}</text>')
        self.parts.append(
            f'<text transform="translate(12 {HEIGHT / 2 - 10}) rotate(-90)" class="name mid">{escape(y_name)}</text>'
        )

    def px(self, x: float) -> float:
        low, high = self.x_range
        if self.log_x:
            low, high, x = math.log(low), math.log(high), math.log(max(x, low))
        return LEFT + (x - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def py(self, y: float) -> float:
        low, high = self.y_range
        return HEIGHT - BOTTOM - (y - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    def svg(self) -> str:
        return svg("".join(self.parts), WIDTH, HEIGHT)


def nonempty_range(low: float, high: float) -> tuple[float, float]:
    """The range, widened by one if it is empty."""
    return (low, high) if high > low else (low - 0.5, low + 0.5)


def svg(body: str, width: float, height: float) -> str:
    """An SVG element of that size."""
    return f'<svg viewBox="0 0 {width:g} {height:g}" role="img" xmlns="http://www.w3.org/2000/svg">{body}</svg>'


STYLE = (
    "<style>.grid{stroke:#e2e8f0}text{font:12px system-ui,sans-serif;fill:#475569}.name{fill:#334155}"
    ".mid{text-anchor:middle}.end{text-anchor:end}</style>"
)


def alone(plot: str) -> str:
    """A chart as an SVG file of its own."""
    return plot.replace(">", f">{STYLE}", 1)


def side_by_side(plots: Sequence[str]) -> str:
    """Several charts in one SVG file with its own style."""
    inner = "".join(f'<g transform="translate({k * WIDTH} 0)">{plot}</g>' for k, plot in enumerate(plots))
    sized = inner.replace("<svg viewBox", f'<svg width="{WIDTH}" height="{HEIGHT}" viewBox')
    return svg(STYLE + sized, WIDTH * len(plots), HEIGHT)


def lines(
    series: dict[str, tuple[Sequence[float], Sequence[float | None]]],
    x_name: str,
    y_name: str,
    y_range: tuple[float, float] | None = None,
    band: tuple[Sequence[float], Sequence[float | None]] | None = None,
    log_x: bool = False,
) -> str:
    """Curves over a common x axis, logarithmic with `log_x`; `band` is drawn around the first curve."""
    points = {
        name: [(x, y) for x, y in zip(xs, ys, strict=True) if y is not None and math.isfinite(y)]
        for name, (xs, ys) in series.items()
    }
    everything = [p for curve in points.values() for p in curve] or [(0.0, 0.0), (1.0, 1.0)]
    xs, ys = [p[0] for p in everything], [p[1] for p in everything]
    logarithmic = log_x and 0.0 < min(xs) < max(xs)
    axes = Axes((min(xs), max(xs)), y_range or (min(ys), max(ys)), x_name, y_name, logarithmic)
    first = next(iter(points.values()))
    if band is not None and first:
        around = {x: s for x, s in zip(*band, strict=True) if s is not None and math.isfinite(s)}
        upper = [(x, y + around.get(x, 0.0)) for x, y in first]
        lower = [(x, y - around.get(x, 0.0)) for x, y in reversed(first)]
        path = " ".join(f"{axes.px(x):.1f},{axes.py(y):.1f}" for x, y in upper + lower)
        axes.parts.append(f'<polygon points="{path}" fill="{ACCENT}" opacity="0.15"/>')
    for curve, color in zip(points.values(), cycle(CURVE_COLORS), strict=False):
        path = " ".join(f"{axes.px(x):.1f},{axes.py(y):.1f}" for x, y in curve)
        axes.parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
    if len(points) > 1:
        axes.parts.append(legend(list(points)))
    return axes.svg()


def legend(names: list[str]) -> str:
    """Names of the curves, in the lower right corner: rising curves leave it free."""
    wide, tall = 8 * max(map(len, names)) + 34, 16 * len(names) + 8
    left, top = WIDTH - RIGHT - wide - 6, HEIGHT - BOTTOM - tall - 6
    parts = [f'<rect x="{left}" y="{top}" width="{wide}" height="{tall}" rx="4" fill="#fff" opacity="0.8"/>']
    for k, (name, color) in enumerate(zip(names, cycle(CURVE_COLORS), strict=False)):
        y = top + 16 * k + 12
        parts.append(f'<line x1="{left + 6}" x2="{left + 22}" y1="{y}" y2="{y}" stroke="{color}" stroke-width="3"/>')
        parts.append(f'<text x="{left + 28}" y="{y + 4}" class="tick">{escape(name)}</text>')
    return "".join(parts)


def histogram(values: np.ndarray, x_name: str, y_name: str, bins: int = 30) -> str:
    """The distribution of the finite values, with their mean."""
    values = values[np.isfinite(values)]
    if not values.size:
        return svg('<text x="20" y="40" class="name">no episode has a value</text>', WIDTH, 80)
    counts, edges = np.histogram(values, bin_edges(values, bins))
    axes = Axes((edges[0], edges[-1]), (0.0, 1.15 * float(counts.max())), x_name, y_name)
    for count, a, b in zip(counts, edges, edges[1:], strict=False):
        x, y = axes.px(a), axes.py(float(count))
        axes.parts.append(
            f'<rect x="{x + 0.5:.1f}" y="{y:.1f}" width="{max(axes.px(b) - x - 1, 0.5):.1f}" '
            f'height="{HEIGHT - BOTTOM - y:.1f}" fill="{ACCENT}" opacity="0.8"/>'
        )
    middle = axes.px(float(np.mean(values)))
    axes.parts.append(
        f'<line x1="{middle:.1f}" x2="{middle:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" '
        f'stroke="{SECOND}" stroke-width="2" stroke-dasharray="5 3"/>'
        f'<text x="{middle + 5:.1f}" y="{TOP + 12}" class="tick" fill="{SECOND}">mean {np.mean(values):.2f}</text>'
    )
    return axes.svg()


def bin_edges(values: np.ndarray, bins: int) -> np.ndarray:
    """Edges of about `bins` equal bins without the highest outliers.

    Values on a grid, such as times in control periods, get bins of whole grid steps: other bins would show a comb.
    """
    low, high = nonempty_range(*(float(x) for x in np.quantile(values, [0.0, 0.995])))
    gaps = np.diff(np.unique(np.round(values.astype(float), 4)))
    step = float(gaps.min()) if gaps.size else 0.0
    if step and np.allclose(gaps / step, np.round(gaps / step), atol=0.05) and (high - low) / step < 10 * bins:
        points = math.ceil((high - low) / step - 0.05) + 1
        per_bin = math.ceil(points / bins)
        return low + step * (per_bin * np.arange(math.ceil(points / per_bin) + 1) - 0.5)
    return np.linspace(low, high, bins + 1)


def stacked_bar(parts: dict[str, float]) -> str:
    """One bar divided into fractions, with a legend."""
    colors = (ACCENT, "#14b8a6", "#eab308", SECOND, "#9333ea", "#cbd5e1")
    body, x = [], 0.0
    for fraction, color in zip(parts.values(), colors, strict=False):
        width = max(fraction, 0.0) * WIDTH
        body.append(f'<rect x="{x:.1f}" y="0" width="{width:.1f}" height="34" fill="{color}"/>')
        x += width
    for i, ((name, fraction), color) in enumerate(zip(parts.items(), colors, strict=False)):
        left, top = 140 * (i % 4), 46 + 20 * (i // 4)
        body.append(f'<rect x="{left}" y="{top}" width="11" height="11" fill="{color}"/>')
        body.append(f'<text x="{left + 16}" y="{top + 10}" class="tick">{escape(name)} {100 * fraction:.1f} %</text>')
    return svg("".join(body), WIDTH, 64 + 20 * ((len(parts) - 1) // 4))
