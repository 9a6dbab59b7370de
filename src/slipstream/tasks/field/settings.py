"""Settings of the field robot that belong together. A pair is the range from which each world draws its own value."""

from dataclasses import dataclass, fields

Range = tuple[float, float]


def check_ranges(settings: object, names: tuple[str, ...]) -> None:
    """Refuse ranges that are negative or the wrong way round."""
    for name in names:
        low, high = getattr(settings, name)
        if not 0.0 <= low <= high:
            raise ValueError(f"{name} is a range of numbers that are not negative, lowest first, not {low:g} {high:g}")


@dataclass(frozen=True)
class Crop:
    """How plants stand in rows."""

    row_spacing: Range = (1.2, 1.2)
    """from one row to the next, m"""
    row_length: Range = (3.0, 3.0)
    """length of the rows, m"""
    plant_spacing: float = 1.0 / 3.0
    """from one plant to the next in a row, m"""
    plant_radius: float = 0.1
    """m"""
    plant_noise: float = 0.03
    """standard deviation of a plant's position along each axis, m"""
    bend: Range = (0.15, 0.15)
    """largest sideways offset of the control points of the spline that the rows follow, m"""
    bend_spacing: float = 1.0 / 3.0
    """from one control point to the next along the rows, m"""
    curvature: Range = (0.0, 0.0)
    """curvature of the rows as a whole, to either side, 1/m"""
    missing: Range = (0.0, 0.0)
    """fraction of plants that are missing"""
    gaps: Range = (0.0, 0.0)
    """fraction of stretches of three plants that are missing as a whole"""
    ragged_ends: int = 0
    """largest number of plants that are missing at an end of a row"""

    def __post_init__(self) -> None:
        check_ranges(self, ("row_spacing", "row_length", "bend", "curvature", "missing", "gaps"))
        if min(self.plant_spacing, self.plant_radius, self.bend_spacing, self.row_spacing[0]) <= 0.0:
            raise ValueError("plant_spacing, plant_radius, bend_spacing and row_spacing must be positive")
        if self.row_length[0] < self.plant_spacing or self.plant_noise < 0.0 or self.ragged_ends < 0:
            raise ValueError("a row has at least two plants; plant_noise and ragged_ends are not negative")
        if max(self.missing[1], self.gaps[1]) >= 1.0:
            raise ValueError("missing and gaps are fractions below 1")


@dataclass(frozen=True)
class Terrain:
    """How the ground differs between worlds."""

    slope: Range = (0.0, 0.0)
    """slide to one side for each meter driven, in a direction of the world, m"""
    slip: Range = (0.0, 0.0)
    """fraction of the wheel speed that is lost"""

    def __post_init__(self) -> None:
        check_ranges(self, tuple(f.name for f in fields(self)))
        if max(self.slope[1], self.slip[1]) >= 1.0:
            raise ValueError("slope and slip are fractions below 1")


@dataclass(frozen=True)
class FieldReward:
    """Weights of the terms whose sum is the reward of a step."""

    progress: float = 1.0
    """for each meter nearer to the waypoint"""
    waypoint: float = 0.5
    """for a waypoint reached"""
    finish: float = 5.0
    """for the last waypoint"""
    touch: float = -2.0
    """for touching a plant"""
    lost: float = -2.0
    """for leaving the way"""
    late: float = 0.0
    """for running out of time"""
    distance: float = 0.0
    """each step, for each meter beyond 0.1 m from the waypoint"""
    command: float = -0.02
    """each step, for each command that the queue is ahead or behind"""
    step: float = -0.02
    """each step"""
    penalty_growth: float = 1.0
    """factor by which the penalties for touching and for leaving the way grow between 30 % and 60 % of a training:
    large ones from the start teach a robot to stand still"""
