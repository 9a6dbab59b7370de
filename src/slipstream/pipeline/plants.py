"""How far apart plants are, and the fast model fitted to one of them."""

from pathlib import Path
from typing import Any

from ..core import device
from ..core.errors import suggest
from ..core.task import ProbedTask
from ..evaluation import parity as parity_of_plants
from ..evaluation.fit import Fit, fit_experiment
from ..evaluation.fit import write as write_fit
from ..evaluation.probe_fit import fit_probed_experiment
from ..plants.registry import PLANTS, require_plant
from ..plants.settings import PlantSettings
from ..progress import CountingBar
from ..reports import parity as parity_film
from .training import AnyExperiment, RunLike, open_run


def parity(
    run: RunLike,
    plants: list[str],
    *,
    worlds: int | None = None,
    seed: int | None = None,
    settings: PlantSettings = PlantSettings(),
) -> dict[str, Any]:
    """Compare the plants, the first one being the base, and film each pair; the same policy, worlds and starts."""
    for name in plants:
        require_plant(name)
    if len(plants) < 2 or len(set(plants)) < len(plants):
        raise ValueError("parity needs at least two different plants")
    if worlds is not None and worlds < 1:
        raise ValueError("worlds must be at least 1")
    opened = open_run(run)
    with CountingBar("parity") as bar:
        result = parity_of_plants.compare(opened, plants, worlds, seed, settings, watch=bar.update_part)
        films = [str(parity_film.film(opened, plants[0], other)) for other in plants[1:]]
    return result | {"films": films}


FIT_ON_DEVICE = "px4-controller"
"""PX4's controller on the device, as a plant to fit to."""


def fit(
    experiment: AnyExperiment,
    plant: str = FIT_ON_DEVICE,
    *,
    log: Path | None = None,
    flights: int = 24,
    seconds: float = 20.0,
    seed: int = 0,
    settings: PlantSettings = PlantSettings(),
    out: Path,
) -> tuple[AnyExperiment, Fit]:
    """Fit the fast model of an experiment to a plant or a flight log, and write the preset that train takes."""
    if flights < 4 or seconds < 1.0:
        raise ValueError("a fit needs at least 4 flights of 1 s")
    known = [FIT_ON_DEVICE, *(name for name in PLANTS if name != "fast")]
    if log is None and plant not in known:
        raise ValueError(f"there is no plant '{plant}' to fit to{suggest(plant, known)}")
    device.configure(1)
    probed = isinstance(experiment.task, ProbedTask)
    if probed and (log is not None or plant == FIT_ON_DEVICE):
        raise ValueError(f"{experiment.task.description} is fitted to probes on a plant: give --plant mujoco")
    body = None if log is not None or plant == FIT_ON_DEVICE else PLANTS[plant](settings)
    with CountingBar("fit") as bar:
        if probed:
            assert body is not None
            fitted, found = fit_probed_experiment(experiment, body, flights, seed, watch=bar.update_part)
        else:
            fitted, found = fit_experiment(
                experiment, body, log, flights, seconds, seed, settings.px4_version, watch=bar.update_part
            )
    write_fit(out, fitted, found)
    return fitted, found
