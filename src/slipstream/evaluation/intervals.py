"""95 % confidence intervals of an evaluation. Worlds are independent samples; agents of one world are correlated."""

import math

import numpy as np
from scipy.special import stdtrit

Interval = tuple[float, float]
MIN_WORLDS = 5
"""Smallest number of worlds for an interval."""
NONE: Interval = (math.nan, math.nan)


def quantile(worlds: int) -> float:
    """The quantile of Student's t distribution for a two-sided 95 % interval."""
    return float(stdtrit(worlds - 1, 0.975))


def rate(values: np.ndarray, agents: int = 1) -> Interval:
    """Wilson's score interval of a success rate; `values` are 0 or 1, grouped by world.

    Agents of one world are correlated, so the sample size is the effective one: that of independent samples with the
    variance observed between worlds.
    """
    rows = np.asarray(values, float).reshape(-1, agents)
    worlds = len(rows)
    if worlds < MIN_WORLDS:
        return NONE
    p = float(np.mean(rows))
    count = float(worlds)
    # If all succeed or all fail, the correlation within a world is unknown: each world counts as one sample.
    if agents > 1 and 0.0 < p < 1.0:
        between = float(np.var(rows.mean(1), ddof=1))
        count = p * (1.0 - p) / between if between > 0.0 else float(rows.size)
        count = float(np.clip(count, worlds, rows.size))
    t = quantile(worlds)
    middle = (p + t * t / (2.0 * count)) / (1.0 + t * t / count)
    half = t / (1.0 + t * t / count) * math.sqrt(p * (1.0 - p) / count + t * t / (4.0 * count * count))
    return max(middle - half, 0.0), min(middle + half, 1.0)


def mean(values: np.ndarray, agents: int = 1) -> Interval:
    """Student's t interval of a mean, over the means of worlds."""
    rows = np.asarray(values, float).reshape(-1, agents).mean(1)
    if len(rows) < MIN_WORLDS:
        return NONE
    half = quantile(len(rows)) * float(np.std(rows, ddof=1)) / math.sqrt(len(rows))
    return float(np.mean(rows)) - half, float(np.mean(rows)) + half


def ratio_of_rates(ours: np.ndarray, theirs: np.ndarray, agents: int = 1) -> Interval:
    """Interval of the ratio of two success rates, theirs over ours (MOVER; Donner and Zou, 2012).

    It ignores that both ran the same worlds, which makes it a little too wide, never too narrow.
    """
    base, other = float(np.mean(ours)), float(np.mean(theirs))
    (base_low, base_high), (low, high) = rate(ours, agents), rate(theirs, agents)
    below, above = base_high * (2.0 * base - base_high), base_low * (2.0 * base - base_low)
    if not below > 0.0 or not above > 0.0:
        return NONE
    product = base * other
    down = math.sqrt(max(product**2 - low * (2.0 * other - low) * below, 0.0))
    up = math.sqrt(max(product**2 - high * (2.0 * other - high) * above, 0.0))
    return max((product - down) / below, 0.0), (product + up) / above


def ratio_of_means(ours: np.ndarray, theirs: np.ndarray, agents: int = 1) -> Interval:
    """Fieller's interval of the ratio of two means, theirs over ours, paired by world.

    It contains every r for which the mean of  theirs − r · ours  may be zero; NaN if our mean may be zero itself.
    """
    a, b = (np.asarray(x, float).reshape(-1, agents).mean(1) for x in (ours, theirs))
    count = len(a)
    if count < MIN_WORLDS:
        return NONE
    t = quantile(count) ** 2 / count
    (va, cov), (_, vb) = np.cov(a, b)
    p, q, r = np.mean(a) ** 2 - t * va, np.mean(a) * np.mean(b) - t * cov, np.mean(b) ** 2 - t * vb
    if p <= 0.0:
        return NONE
    half = math.sqrt(max(q * q - p * r, 0.0))
    return float((q - half) / p), float((q + half) / p)


def difference(ours: np.ndarray, theirs: np.ndarray, agents: int = 1) -> Interval:
    """Interval of the difference of two means, theirs minus ours, paired by world."""
    return mean(np.asarray(theirs, float) - np.asarray(ours, float), agents)
