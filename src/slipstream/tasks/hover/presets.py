"""The presets of hovering."""

from dataclasses import replace
from typing import Any

from ...experiment.experiment import Experiment
from ...learn.shac import Shac
from .task import Hover

ORDER = 1
TASK = Hover

# Back-propagation through one second of flight with the task's own terminal value. No critic is learned: recovery is
# over before one would be of use.
hover = Experiment(
    task=Hover(train_time_limit=4.0),
    learner=Shac(
        worlds=64,
        rollout_length=48,
        hidden_sizes=(32, 32),
        bootstrap="terminal_value",
        discount=1.0,
        init_std=0.1,
        final_std=0.1,
        normalize_observations=False,
        minibatches=1,
    ),
    steps=64 * 48 * 80,
    # One core does it in a third of a second.
    devices=1,
    average=0.2,
)
motors = replace(
    hover,
    task=replace(hover.task, control_mode="motor_speeds"),
    learner=replace(hover.learner, worlds=128),
    steps=128 * 48 * 200,
)

PRESETS: dict[str, Experiment[Any, Any]] = {
    "hover": hover,
    "hover-motors": motors,
    "hover-crazyflie": replace(hover, task=replace(hover.task, vehicle="crazyflie"), steps=64 * 48 * 160),
    "hover-crazyflie-motors": replace(motors, task=replace(motors.task, vehicle="crazyflie")),
    # Its rates are slower and its thrust smaller: it falls further before it is upright.
    "hover-iris": replace(
        hover, task=replace(hover.task, vehicle="iris", time_limit=6.0, train_time_limit=6.0), steps=64 * 48 * 192
    ),
    "hover-moving": replace(hover, task=replace(hover.task, reference="moving"), steps=64 * 48 * 128),
}
