"""Scripted grasps that show what the parameters of the fast model do: reach, grasp, lift, swing, let go."""

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ...core.geometry import Vec3, arctan2
from ...core.rng import Rng
from .state import LiftState

if TYPE_CHECKING:
    from .task import Lift

PHASES = {"over": 35, "down": 25, "close": 25, "up": 30, "swing": 25, "let go": 10}
"""Steps of each part."""
REACH, TURN = 0.01, 0.15
"""How far one action moves the gripper along each axis, m, and turns it, rad."""


def grasp_script(task: "Lift", state: LiftState, rng: Rng) -> Float[Array, "steps action"]:
    """A grasp that is a little off the cube's middle and angle, of a random force, and a swing."""
    cube, at = state.body.cube, task.model.gripper(state.body).position
    draws = []
    for low, high in ((-0.006, 0.006), (-0.006, 0.006), (0.015, 0.022), (-0.25, 0.25), (-1.0, -0.3), (-0.04, 0.04)):
        one, rng = rng.uniform(low, high)
        draws.append(one)
    aside_x, aside_y, low, skew, force, swing = draws
    ahead = cube.attitude.forward
    pan = arctan2(cube.position.y, cube.position.x - task.arm.base[0])
    quarter = 0.5 * jnp.pi
    yaw = arctan2(ahead.y, ahead.x) - pan + skew
    yaw = yaw - quarter * jnp.round(yaw / quarter)
    over = Vec3(cube.position.x + aside_x, cube.position.y + aside_y, 0.06 + 0.0 * low)
    goals = {
        "over": over,
        "down": Vec3(over.x, over.y, low),
        "close": Vec3(over.x, over.y, low),
        "up": Vec3(over.x, over.y, low + 0.08),
        "swing": Vec3(over.x, over.y + swing, low + 0.08),
        "let go": Vec3(over.x, over.y + swing, low + 0.08),
    }
    rows, here = [], (at, 0.0 * yaw)
    for name, steps in PHASES.items():
        opening = {"close": force, "up": force, "swing": force}.get(name, 1.0 + 0.0 * force)

        def tick(here: tuple[Vec3, Array], _: None, goal: Vec3 = goals[name], opening: Array = opening) -> tuple:
            place, angle = here
            move = [jnp.clip((b - a) * (1.0 / REACH), -0.6, 0.6) for a, b in zip(place.parts, goal.parts, strict=True)]
            turn = jnp.clip((yaw - angle) * (1.0 / TURN), -0.6, 0.6)
            after = Vec3(*(a + REACH * m for a, m in zip(place.parts, move, strict=True))), angle + TURN * turn
            return after, jnp.stack([*move, turn, opening])

        here, part = jax.lax.scan(tick, here, length=steps)
        rows.append(part)
    return jnp.concatenate(rows)
