"""Write your own task in forty lines: a point mass that must come to rest at the origin."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from slipstream.core import device
from slipstream.core.geometry import Vec2
from slipstream.core.spaces import Box
from slipstream.core.task import Spec, State
from slipstream.learn.compiled import Trainer
from slipstream.learn.ppo import Ppo


@dataclass(frozen=True)
class Parking:
    """The body is position and velocity; the reward is the way it comes nearer."""

    spec = Spec(observation=4, action=Box(2), control_dt=0.1)

    def reset(self, rng):
        x, rng = rng.uniform(-5.0, 5.0)
        y, rng = rng.uniform(-5.0, 5.0)
        body, off, zero = (Vec2(x, y), Vec2(0.0 * x, 0.0 * x)), jnp.bool_(False), jnp.float32(0.0)
        return State(None, body, zero, rng, jnp.int32(0), zero, off, off)

    def step(self, state, action):
        place, velocity = state.body
        velocity = velocity + (Vec2(*jnp.clip(action, -1.0, 1.0)) - velocity * 0.1) * self.spec.control_dt
        after = place + velocity * self.spec.control_dt
        step, reward = state.step + 1, place.norm() - after.norm() - 0.01 * velocity.norm()
        state = replace(state, body=(after, velocity), progress=after.norm(), step=step, reward=reward)
        return replace(state, truncated=step >= 100)

    def observe(self, state):
        place, velocity = state.body
        return jnp.stack([place.x, place.y, velocity.x, velocity.y])

    def episode_metrics(self, state):
        return {"success": (state.progress < 0.3).astype(jnp.float32), "distance": state.progress}


def main(updates: int = 160) -> float:
    device.configure()
    trainer = Trainer(Parking(), Ppo(worlds=256, length=32), device.mesh(), updates, chunk_length=updates // 4)
    chunk, train = trainer.compile(), trainer.start(seed=0)
    for _ in range(4):
        train, _, tally = chunk(train)
        figures = {name: float(value) for name, value in jax.device_get(tally.means()).items()}
        print({name: round(value, 3) for name, value in figures.items()})
    return figures["success"]


if __name__ == "__main__":
    main()
