"""slipstream fit: fit the fast model of a preset to a plant or to a flight log."""

import math
import os
from dataclasses import dataclass
from pathlib import Path

import tyro

from ..core.task import FittableTask
from ..evaluation.fit import Fit
from ..experiment import registry
from ..pipeline.plants import FIT_ON_DEVICE, fit
from ..pipeline.training import find_experiment
from ..plants.settings import PlantSettings
from .options import emit, parse


@dataclass(frozen=True)
class FitOptions:
    """Fit the fast model of a preset to a plant, or to a flight log, and write a preset that train takes."""

    preset: str = ""
    """preset whose model is fitted; by default the first one whose model also takes flight logs"""
    plant: str = FIT_ON_DEVICE
    """px4-controller (on the device), mujoco, betaflight or px4"""
    log: Path | None = None
    """a PX4 flight log (.ulg) instead of a plant"""
    out: Path | None = None
    """where the preset is written; by default PRESET-PLANT.json"""
    flights: int = 24
    """number of flights"""
    seconds: float = 20.0
    """length of each flight"""
    seed: int = 0
    """seed of the commands flown"""
    settings: tyro.conf.OmitArgPrefixes[PlantSettings] = PlantSettings()
    """the plant"""
    json: bool = False
    """print one JSON object and nothing else on standard output"""


def run(words: list[str]) -> int:
    options = parse(FitOptions, words, "fit")
    base, name = find_experiment(options.preset or default_preset())
    source = options.log.stem if options.log else options.plant
    out = options.out or Path(f"{name}-{source}.json")
    if not os.access(out.parent, os.W_OK):
        raise ValueError(f"{out.parent} is no folder that can be written to; choose another by --out")
    _, found = fit(
        base,
        options.plant,
        log=options.log,
        flights=options.flights,
        seconds=options.seconds,
        seed=options.seed,
        settings=options.settings,
        out=out,
    )
    emit({"preset": str(out), **found.as_dict()}, options.json, lambda: format_fit(found, out))
    return 0


def default_preset() -> str:
    """The first preset whose model can be fitted to a plant and to a log."""
    for name, preset in registry.presets().items():
        if isinstance(preset.task, FittableTask) and preset.task.fit_model().cruises:
            return name
    raise ValueError("no preset has a model that can be fitted; name one by --preset")


def format_fit(found: Fit, out: Path) -> str:
    lines = [f"{'parameter':26} {'found':>9} {'± error':>8} {'between flights':>16}"]
    for name, value in found.parameters.items():
        error, between = 100 * found.relative_error[name], 100 * found.between_flight_std[name]
        lines.append(f"{name:26} {value:9.3f} {error:7.1f}% {between:15.1f}%")
    ratio = found.error_before / max(found.error_after, 1e-9)
    lines.append(
        f"held-out error: {found.error_before:.3f} before, {found.error_after:.3f} after ({ratio:.1f} times less)"
    )
    if math.isfinite(found.step_error_after):
        before, after = found.step_error_before, found.step_error_after
        ratio = before / max(after, 1e-9)
        lines.append(f"steps of 5 m/s: {before:.3f} m/s before, {after:.3f} after ({ratio:.1f} times less)")
    return "\n".join([*lines, f"train on it: slipstream train {out}"])
