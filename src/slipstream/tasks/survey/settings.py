"""Settings of a survey that belong together."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Navigation:
    """How well a drone knows its position."""

    gnss_outage_prob: float = 0.15
    """probability that a drone loses satellite navigation (GNSS) for a minute of its sortie"""
    vio_failure_prob: float = 0.0
    """probability that visual-inertial odometry (VIO) fails as well during an outage; the drone then lands"""
    position_drift_std: float = 0.5
    """standard deviation of a drone's position error, m; four times that during an outage"""

    def __post_init__(self) -> None:
        for name in ("gnss_outage_prob", "vio_failure_prob"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} is a probability between 0 and 1, not {getattr(self, name):g}")
        if self.position_drift_std < 0.0:
            raise ValueError("position_drift_std must not be negative")


@dataclass(frozen=True)
class Randomization:
    """How much flights differ."""

    gust_std: float = 0.5
    """standard deviation of the speed at which gusts move a drone, m/s"""
    response: float = 0.0
    """largest relative change of a drone's time constants between sorties"""

    def __post_init__(self) -> None:
        if self.gust_std < 0.0:
            raise ValueError("gust_std must not be negative")
        if not 0.0 <= self.response < 1.0:
            raise ValueError(f"response is a relative change between 0 and 1, not {self.response:g}")
