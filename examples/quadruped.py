"""A four-legged robot of your own learns to walk: examples/quadruped.xml says what it is, this file what it is to do.

    slipstream pipeline examples/quadruped.xml:Walk

trains it, evaluates it, films it by Slipstream's camera and writes runs/walk/report.html, in a few minutes on one core.
MuJoCo must be there: pip install mujoco
"""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp

from slipstream.adapters.mjcf import MjcfTask


@dataclass(frozen=True)
class Walk(MjcfTask):
    """Walk straight ahead at a given speed."""

    training_settings: ClassVar = {"steps": 3_000_000, "init_std": 0.5, "final_std": 0.15, "anneal_start": 0.8}

    model: str = "quadruped.xml"
    reset_noise: float = 0.1
    action_scale: float = 0.4
    speed: float = 0.6
    """commanded speed, m/s"""

    def stride(self, robot):
        """Where in its stride of 0.6 s the robot should be: which pair of feet is to be lifted, and how far."""
        return jnp.sin(robot.time * (2.0 * jnp.pi / 0.6)), jnp.cos(robot.time * (2.0 * jnp.pi / 0.6))

    def observation(self, robot, action):
        torso = robot.body("torso")
        joints = robot.qpos[7:] - jnp.asarray(self.loaded.keyframe("home")[0][7:], jnp.float32)
        place = [torso.position.y, torso.position.z * 3.0, torso.attitude.axes.down_b, torso.attitude.forward.y]
        motion = [torso.velocity_b, torso.angular_velocity_b * 0.25, robot.qvel[6:] * 0.05]
        return [place, motion, joints, action, self.stride(robot)]

    def reward(self, before, after, action, last):
        torso, (swing, _) = after.body("torso"), self.stride(after)
        ahead, aside, turn = torso.velocity_w.x - self.speed, torso.velocity_w.y, torso.angular_velocity_w.z
        tracking = jnp.exp(-6.0 * (ahead**2 + aside**2)) + 0.5 * torso.attitude.forward.x - 0.1 * turn**2
        tracking -= 0.5 * jnp.minimum(torso.position.y**2, 1.0)
        feet = {"front_left_foot": 1.0, "rear_right_foot": 1.0, "front_right_foot": -1.0, "rear_left_foot": -1.0}
        wrong = [after.geom(f).position.z - 0.03 - 0.06 * jnp.maximum(side * swing, 0.0) for f, side in feet.items()]
        trot = 0.5 * jnp.exp(-sum(gap**2 for gap in wrong) / 0.003)
        effort = 0.01 * jnp.sum((action - last) ** 2) + 0.0002 * jnp.sum(after.qvel[6:] ** 2)
        bounce = 0.5 * torso.velocity_w.z**2 + 0.02 * (torso.angular_velocity_w.x**2 + torso.angular_velocity_w.y**2)
        return tracking + trot - effort - bounce - 5.0 * self.terminated(after)

    def terminated(self, robot):
        torso = robot.body("torso")
        return (torso.position.z < 0.18) | (torso.attitude.up.z < 0.5)

    def success(self, robot):
        """Whether it is where that speed takes it by the end, within 15 %, and half a meter of the line."""
        ahead, aside = robot.body("torso").position.x, robot.body("torso").position.y
        way = self.speed * self.time_limit
        return (jnp.abs(ahead - way) < 0.15 * way) & (jnp.abs(aside) < 0.5)

    def metrics(self, robot):
        return {"distance": robot.body("torso").position.x, "speed": robot.body("torso").velocity_w.x}
