"""A task so small that every number can be said beforehand, with every kind of action, a camera and several agents."""

from dataclasses import dataclass, replace

import jax.numpy as jnp

from slipstream.core.spaces import Box, Discrete, MultiDiscrete
from slipstream.core.task import Spec, State, Task, stack_features

SPACES = {"box": Box(1), "discrete": Discrete(3), "multidiscrete": MultiDiscrete((3, 2))}


@dataclass(frozen=True)
class Ladder(Task):
    """An agent climbs by its action from height 0: 3 is the top and terminates; after five steps time is over.

    It observes its height and the number of its steps. The reward is what it climbed.
    """

    space: str = "box"
    agents: int = 1
    camera: bool = False
    interval: int = 1
    critic: bool = False
    limit: int = 5

    @property
    def spec(self):
        return Spec(
            2, SPACES[self.space], 1.0, self.agents, (4, 4, 3) if self.camera else None, self.interval,
            privileged_size=1 if self.critic else 0,
        )  # fmt: skip

    @property
    def _shape(self):
        return (self.agents,) if self.agents > 1 else ()

    def reset(self, rng):
        _, rng = rng.bits()
        zero, no = jnp.zeros(self._shape), jnp.zeros(self._shape, bool)
        return State(zero, zero, zero, rng, jnp.int32(0), zero, no, no)

    def climbed(self, action):
        if self.space == "box":
            return action[..., 0]
        if self.space == "discrete":
            return action.astype(jnp.float32) - 1.0
        return (action[..., 0] - 1.0) * (action[..., 1] + 1.0)

    def step(self, state, action):
        step, rise = state.step + 1, self.climbed(action)
        height = state.body + rise
        terminated = height >= 3.0
        return replace(
            state, body=height, rng=state.rng.bits()[1], step=step, reward=rise,
            terminated=terminated, truncated=(step >= self.limit) & ~terminated,
        )  # fmt: skip

    def observe(self, state):
        return stack_features([state.body, jnp.broadcast_to(state.step.astype(jnp.float32), self._shape)])

    def privileged_observation(self, state):
        return 10.0 * state.body[..., None]

    def image(self, state):
        words = jnp.broadcast_to(state.step, self._shape).astype(jnp.uint32) * jnp.uint32(0x010101)
        return jnp.broadcast_to(words[..., None, None], (*self._shape, 4, 4))

    def episode_metrics(self, state):
        return {"success": state.terminated.astype(jnp.float32), "height": state.body}
