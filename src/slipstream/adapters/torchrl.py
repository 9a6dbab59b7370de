"""TorchRL: many worlds as its `EnvBase`, which keeps the true last observation in `next`.

env = SlipstreamEnv("hover", worlds=256)
collector = Collector(env, policy, frames_per_batch=16_384, total_frames=1_500_000)

Observations share memory with our program; rewards and flags are copies.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from ..core.spaces import Box, Discrete
from .arrays import from_torch, own_tensor, to_torch, torch_device
from .libraries import load, needed
from .tasks import TaskLike, find_task
from .vector import MAX_SEED, Observation, Worlds

with needed("this adapter"):
    import torch
    from tensordict import TensorDict, TensorDictBase
    from torchrl.envs import EnvBase

specs = load("torchrl.data", "this adapter")

FLAGS = ("done", "terminated", "truncated")


class SlipstreamEnv(EnvBase):
    """Worlds of a task; every agent of a world is a row of the batch.

    TorchRL asks for the restart of what is done, so that `next` holds the true last observation. Keys: `observation`,
    `pixels` with a camera, `privileged` for critics, and with several agents `alive`, which is false while an agent
    waits for others of its world: such rows are no experience.
    """

    def __init__(
        self,
        task: TaskLike = "racing",
        worlds: int = 256,
        seed: int = 0,
        evaluation: bool = False,
        **settings: Any,
    ) -> None:
        self.task = find_task(task, evaluation, **settings)
        self.worlds = Worlds(self.task, worlds, seed)
        rows = self.worlds.rows
        super().__init__(device=torch.device(torch_device()), batch_size=torch.Size([rows]))
        self.observation_spec = self._observation_spec()
        self.action_spec = self._action_spec()
        self.reward_spec = specs.Unbounded((rows, 1), device=self.device)
        flags = {name: specs.Binary(1, (rows, 1), dtype=torch.bool) for name in FLAGS}
        self.full_done_spec = specs.Composite(**flags, shape=(rows,), device=self.device)
        self._next_seed: int | None = seed
        self._pending: Observation | None = None

    def _observation_spec(self) -> Any:
        spec, rows = self.task.spec, self.worlds.rows
        keys: dict[str, Any] = {"observation": specs.Unbounded((rows, self.worlds.features))}
        if spec.image_shape is not None:
            keys["pixels"] = specs.Bounded(0, 255, (rows, *spec.image_shape), dtype=torch.uint8)
        if spec.privileged_size:
            keys["privileged"] = specs.Unbounded((rows, spec.privileged_size))
        if spec.agents > 1:
            keys["alive"] = specs.Binary(1, (rows, 1), dtype=torch.bool)
        return specs.Composite(**keys, shape=(rows,), device=self.device)

    def _action_spec(self) -> Any:
        action, rows = self.task.spec.action, self.worlds.rows
        if isinstance(action, Box):
            return specs.Bounded(-1.0, 1.0, (rows, action.size), device=self.device)
        if isinstance(action, Discrete):
            return specs.Categorical(action.choices, shape=(rows,), device=self.device)
        return specs.MultiCategorical(list(action.choices), shape=(rows, action.size), device=self.device)

    def _set_seed(self, seed: int | None) -> None:
        self._next_seed = None if seed is None else seed % MAX_SEED

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        action = tensordict["action"].reshape(self.worlds.rows, *self.task.spec.action.shape)
        step = self.worlds.step(from_torch(action))
        assert step.final is not None
        self._pending, done = step.observation, own_tensor(step.done)
        flags = {
            "reward": own_tensor(step.reward),
            "done": done,
            "terminated": own_tensor(step.terminated),
            "truncated": own_tensor(step.truncated),
        }
        row = self._observed(step.final, ~done) | {name: value[:, None] for name, value in flags.items()}
        return TensorDict(row, batch_size=self.batch_size, device=self.device)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        asked = None if tensordict is None else tensordict.get("_reset", None)
        if asked is None or self._pending is None:
            observation = self.worlds.reset(self._next_seed)
            self._next_seed = None
        else:
            observation = self._restarted(np.asarray(asked.cpu()).reshape(-1), tensordict)
        self._pending = observation
        waiting = to_torch(self.worlds.ended)
        row = self._observed(observation, ~waiting)
        row |= {name: torch.zeros((self.worlds.rows, 1), dtype=torch.bool) for name in FLAGS}
        return TensorDict(row, batch_size=self.batch_size, device=self.device)

    def _restarted(self, asked: np.ndarray, tensordict: Any) -> Observation:
        """What has ended has restarted already; what is under way restarts only because it was asked for."""
        assert self._pending is not None
        done = np.asarray(tensordict["done"].cpu()).reshape(-1) if "done" in tensordict else asked
        if not (asked & ~done).any():
            return self._pending
        return self.worlds.restart(jnp.asarray(asked & ~done))

    def _observed(self, observation: Observation, alive: Any) -> dict[str, Any]:
        found = {"observation": to_torch(observation.features)}
        if observation.image is not None:
            found["pixels"] = to_torch(observation.image)
        if observation.privileged is not None:
            found["privileged"] = to_torch(observation.privileged)
        return found | {"alive": alive[:, None]} if self.task.spec.agents > 1 else found
