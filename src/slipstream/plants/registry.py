"""The plants there are."""

from collections.abc import Callable

from ..dynamics.px4_controller import Px4Controller
from .betaflight import BetaflightPlant
from .fast import FastPlant
from .mujoco import PERFECT, MujocoPlant, SensorSuite
from .plant import Plant
from .px4 import Px4Plant
from .settings import PlantSettings

PLANTS: dict[str, Callable[[PlantSettings], Plant]] = {
    "fast": lambda settings: FastPlant(),
    "mujoco": lambda settings: MujocoPlant(
        Px4Controller.of_version(settings.px4_version), PERFECT if settings.state_estimate == "truth" else SensorSuite()
    ),
    "betaflight": lambda settings: BetaflightPlant(settings.betaflight),
    "px4": lambda settings: Px4Plant(
        settings.px4, settings.instances, settings.first_instance, by_estimate=settings.state_estimate == "sensors"
    ),
}
