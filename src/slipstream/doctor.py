"""What is installed and what is missing, in words."""

import importlib.metadata
import importlib.util
import shutil
import sys
from typing import Any

import jax

from .core import device

OPTIONAL = {
    "mujoco": ("the MuJoCo plant, and robots of MJCF files", "pip install mujoco"),
    "pymavlink": ("--plant px4", "pip install pymavlink"),
    "pyulog": ("fitting to a PX4 flight log", "pip install pyulog"),
    "torch": ("trainers and policies of other libraries", "pip install torch==2.13.0"),
    "gymnasium": ("environments of Gymnasium", "pip install gymnasium"),
    "pettingzoo": ("parallel environments of PettingZoo", "pip install pettingzoo"),
    "stable_baselines3": ("training by Stable-Baselines3", "pip install stable-baselines3"),
    "sbx": ("training by sbx", "pip install sbx-rl"),
    "skrl": ("training by skrl", "pip install skrl"),
    "rsl_rl": ("training by RSL-RL", "pip install rsl-rl-lib"),
    "rl_games": ("training by rl_games", "pip install rl-games"),
    "torchrl": ("training by TorchRL", "pip install torchrl 'tensordict<0.15'"),
    "brax": ("environments of Brax", "pip install brax"),
    "mujoco_playground": ("environments of MuJoCo Playground", "pip install playground"),
    "tensorboard": ("looking at tensorboard/ in a run", "pip install tensorboard"),
}


def finding(name: str, good: bool, text: str, needed: bool = False) -> dict[str, Any]:
    mark = "ok     " if good else "missing"
    return {"name": name, "good": good, "needed": needed, "text": f"{mark}  {text}"}


def examine() -> list[dict[str, Any]]:
    """One finding a line: what it is about, whether all is well, and if not what to do."""
    found = [
        finding("python", sys.version_info >= (3, 11), f"Python {sys.version.split()[0]} (3.11 or newer)", True),
    ]
    for name in ("jax", "numpy", "optax", "safetensors", "tyro", "rich", "av", "jinja2", "pillow"):
        try:
            version = importlib.metadata.version(name)
            found.append(finding(name, True, f"{name} {version}", True))
        except importlib.metadata.PackageNotFoundError:
            found.append(finding(name, False, f"{name}: run `make setup`", True))
    devices = jax.devices()
    kind = f"{len(devices)} x {devices[0].device_kind} ({devices[0].platform})"
    cores = f"; {device.cores()} cores, one device each" if devices[0].platform == "cpu" else ""
    found.append(finding("devices", True, f"devices: {kind}{cores}", True))
    cache = device.cache_folder()
    size = sum(path.stat().st_size for path in cache.glob("*") if path.is_file()) / 1e6 if cache.exists() else 0.0
    found.append(finding("cache", True, f"compile cache: {cache} ({size:.1f} MB)"))
    compiler = shutil.which("g++")
    text = (
        f"C++ compiler: {compiler}" if compiler else "C++ compiler: install g++ for the limit in `slipstream bench sim`"
    )
    found.append(finding("g++", compiler is not None, text))
    for name, (use, how) in OPTIONAL.items():
        there = importlib.util.find_spec(name) is not None
        found.append(finding(name, there, f"{name}: for {use}" + ("" if there else f"; {how}")))
    return [*found, px4(), betaflight()]


def px4() -> dict[str, Any]:
    """Whether PX4 is there, which, and how to get it."""
    from .plants.plant import PlantError
    from .plants.px4 import Px4

    try:
        there = Px4.find()
        there.check()
    except PlantError as error:
        return finding("px4", False, f"PX4: for --plant px4. {error}")
    return finding("px4", True, f"PX4 {there.version}: {there.binary}")


def betaflight() -> dict[str, Any]:
    from .plants.betaflight import find
    from .plants.plant import PlantError

    try:
        return finding("betaflight", True, f"Betaflight: {find().name}")
    except PlantError as error:
        return finding("betaflight", False, f"Betaflight: for --plant betaflight. {error}")
