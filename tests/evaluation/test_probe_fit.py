"""Factors of a fast model are found again from what a plant did with scripts."""

import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core.rng import Rng
from slipstream.core.task import FittableTask, ProbedTask
from slipstream.evaluation.probe_fit import fit_probes, record
from slipstream.experiment.registry import presets
from slipstream.pipeline.plants import fit
from slipstream.plants.fast import FastPlant

TRUTH = {"servo_gain": 0.8, "pad_friction": 0.7, "mat_friction": 1.3, "pad_stiffness": 0.5}


def unwatched(*what):
    pass


@pytest.fixture(scope="module")
def recorded():
    task = presets()["lift"].task.probe_task()
    return task, record(task.with_factors(TRUTH), FastPlant(), 16, 0, unwatched)


def test_scripts_grasp_lift_and_miss(recorded):
    _, probes = recorded
    height = np.asarray(probes.outputs)[:, -15, 2] / 200.0
    assert 0.2 < np.mean(height > 0.06) < 0.95
    assert np.isfinite(probes.outputs).all()


@pytest.mark.learning
def test_factors_of_another_arm_are_found():
    task = presets()["lift"].task.probe_task()
    probes = record(task.with_factors(TRUTH), FastPlant(), 32, 0, unwatched)
    found = fit_probes(task, probes, "elsewhere", unwatched)
    assert found.parameters == pytest.approx(TRUTH, rel=0.2)
    assert found.error_after < 0.3 * found.error_before
    assert found.flights == 32 and found.held_out == 8 and set(found.relative_error) == set(TRUTH)


def test_a_fitted_task_keeps_its_factors_and_differs_between_worlds_as_much_as_the_fit_did():
    task = presets()["lift"].task
    assert isinstance(task, ProbedTask) and not isinstance(task, FittableTask)
    fitted = task.with_fit(TRUTH, dict.fromkeys(TRUTH, 0.25), {})
    assert fitted.factors.servo_gain == 0.8 and fitted.randomize.servo_gain == 0.25
    assert fitted.randomize.friction == fitted.randomize.pad_stiffness == 0.25
    # The plant is what it is: factors are the model's.
    state = fitted.reset(Rng.from_seed(0, 0))
    assert float(jnp.abs(state.world.servo_gain - 1.0)) <= 0.25


def test_an_arm_is_not_fitted_to_a_drones_controller_or_log(tmp_path):
    with pytest.raises(ValueError, match="give --plant mujoco"):
        fit(presets()["lift"], out=tmp_path / "fitted.json")
