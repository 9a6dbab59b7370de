"""The plants there are."""

from collections.abc import Callable

from ..dynamics.px4_controller import Cascade
from .betaflight import BetaflightPlant
from .fast import FastPlant
from .mujoco import PERFECT, Instruments, MujocoPlant
from .plant import Plant
from .px4 import Px4Plant
from .settings import PlantSettings

PLANTS: dict[str, Callable[[PlantSettings], Plant]] = {
    "fast": lambda settings: FastPlant(),
    "mujoco": lambda settings: MujocoPlant(
        Cascade.of_version(settings.gains), PERFECT if settings.sensors == "perfect" else Instruments()
    ),
    "betaflight": lambda settings: BetaflightPlant(settings.betaflight),
    "px4": lambda settings: Px4Plant(
        settings.px4, settings.instances, settings.instance, by_estimate=settings.sensors == "real"
    ),
}
