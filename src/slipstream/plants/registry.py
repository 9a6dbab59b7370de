"""All plants by name, and how each is made from the settings."""

from collections.abc import Callable, Mapping

from ..core.errors import suggest
from ..dynamics.px4_controller import Px4Controller
from .betaflight import BetaflightPlant
from .fast import FastPlant
from .mujoco import PERFECT_SENSORS, MujocoPlant, SensorSuite
from .mujoco_model import MujocoPlants
from .plant import Plant
from .px4 import Px4Plant
from .settings import PlantSettings


def require_own_camera(settings: PlantSettings) -> None:
    if settings.camera != "ours":
        raise ValueError("--camera gl is MuJoCo's renderer: use it with --plant mujoco")


def make_fast(settings: PlantSettings) -> Plant:
    require_own_camera(settings)
    return FastPlant()


def make_mujoco(settings: PlantSettings) -> Plant:
    sensors = SensorSuite() if settings.state_estimate == "sensors" else PERFECT_SENSORS
    return MujocoPlants(MujocoPlant(Px4Controller.of_version(settings.px4_version), sensors), settings.camera == "gl")


def make_betaflight(settings: PlantSettings) -> Plant:
    require_own_camera(settings)
    return BetaflightPlant(settings.betaflight)


def make_px4(settings: PlantSettings) -> Plant:
    require_own_camera(settings)
    return Px4Plant(settings.px4, settings.instances, settings.first_instance, state_estimate=settings.state_estimate)


PLANTS: Mapping[str, Callable[[PlantSettings], Plant]] = {
    "fast": make_fast,
    "mujoco": make_mujoco,
    "betaflight": make_betaflight,
    "px4": make_px4,
}


def require_plant(name: str) -> None:
    if name not in PLANTS:
        raise ValueError(f"there is no plant '{name}'{suggest(name, PLANTS)}")
