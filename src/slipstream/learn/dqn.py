"""Deep Q-learning, with the parts of Rainbow as settings: double, dueling, n-step, priorities, noisy layers, atoms."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..core.rng import Rng
from ..core.spaces import Box
from ..core.task import Spec
from ..policy.discrete import DiscreteActions, QHead, QPolicy
from ..policy.encoder import Torso
from ..policy.nets import Normalizer
from .exploration import Noise, explore_epsilon_greedy
from .learner import Metrics
from .losses import huber, weighted_mean
from .off_policy import OffPolicy
from .replay import Batch


def require_discrete(spec: Spec, learner: str) -> None:
    """Refuse a continuous action space."""
    if isinstance(spec.action, Box):
        raise ValueError(
            f"{learner} needs discrete actions; for continuous actions choose ac-iqn, sac, td3, ddpg or ppo"
        )


@dataclass(frozen=True)
class Dqn(OffPolicy[QPolicy]):
    """Settings of deep Q-learning."""

    double_q: bool = True
    """double Q-learning: the learned network selects the next action, the target network values it"""
    exploration_repeat: int = 1
    """steps for which a random action is repeated; more helps where only a run of equal actions reaches the goal"""
    dueling: bool = False
    """separate value and advantage streams"""
    noisy_sigma: float = 0.0
    """initial standard deviation of noisy layers, which explore instead of random actions; 0 is none"""
    atoms: int = 1
    """atoms of the return distribution (C51); 1 learns only its mean"""
    v_min: float = -20.0
    """return of the first atom"""
    v_max: float = 60.0
    """return of the last atom"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.atoms, self.exploration_repeat) < 1 or self.noisy_sigma < 0.0 or self.v_min >= self.v_max:
            raise ValueError(
                "atoms and exploration_repeat must be at least 1, noisy_sigma not negative, and v_min below v_max"
            )

    def check_action(self, spec: Spec) -> None:
        require_discrete(spec, type(self).__name__.lower())

    def policy(self, spec: Spec, key: PRNGKeyArray | None = None) -> QPolicy:
        actions = DiscreteActions.of(spec.action)
        key = jax.random.key(0) if key is None else key
        torso_key, head_key = jax.random.split(key)
        support = jnp.linspace(self.v_min, self.v_max, self.atoms) if self.atoms > 1 else jnp.ones(1)
        return QPolicy(
            Normalizer.of(spec.observation),
            Torso.init(torso_key, spec, self.hidden_sizes, self.layer_norm),
            QHead.init(head_key, self.hidden_sizes[-1], actions.heads, self.atoms, self.dueling, self.noisy_sigma),
            actions,
            support,
        )

    def explore(
        self,
        policy: QPolicy,
        observation: Float[Array, "*b d"],
        rngs: Rng,
        progress: Float[Array, ""],
        key: PRNGKeyArray,
        noise: Noise = None,
    ) -> tuple[Array, Rng]:
        outputs = self._outputs(policy, policy.normalizer(observation), key if self.noisy_sigma else None)
        best = policy.actions.best(policy.values(outputs))
        epsilon = jnp.float32(0.0) if self.noisy_sigma else self.epsilon(progress)
        return explore_epsilon_greedy(best, rngs, epsilon, policy.actions.space, self.exploration_repeat)

    def _outputs(self, policy: QPolicy, observation: Array, key: PRNGKeyArray | None) -> Float[Array, "*b h a"]:
        policy, observation = self.cast((policy, observation))
        return policy.outputs(observation, key).astype(jnp.float32)

    def loss(
        self, policy: QPolicy, target: QPolicy, batch: Batch, key: PRNGKeyArray
    ) -> tuple[Array, tuple[Array, Metrics]]:
        actions = policy.actions
        keys = jax.random.split(key, 3) if self.noisy_sigma else (None, None, None)
        outputs = self._outputs(policy, batch.observation, keys[0])
        target_outputs = self._outputs(target, batch.next_observation, keys[1])
        selecting = target_outputs
        if self.double_q:
            selecting = jax.lax.stop_gradient(self._outputs(policy, batch.next_observation, keys[2]))
        target_outputs = jax.lax.stop_gradient(target_outputs)
        next_values = policy.values(selecting)
        losses = errors = jnp.zeros_like(batch.reward)
        for own, index, by, after in zip(
            split_heads(actions, outputs),
            actions.encode(batch.action),
            actions.split(next_values),
            split_heads(actions, target_outputs),
            strict=True,
        ):
            chosen = take_action(own, index)
            following = take_action(after, jnp.argmax(by, -1))
            if self.atoms == 1:
                error = chosen[..., 0] - (batch.reward + batch.discount * following[..., 0])
                losses, errors = losses + huber(error, self.huber_delta), errors + jnp.abs(error)
            else:
                probs = jax.nn.softmax(following)
                targets = project_distribution(probs, batch.reward, batch.discount, policy.support)
                cross_entropy = -jnp.sum(targets * jax.nn.log_softmax(chosen), -1)
                losses, errors = losses + cross_entropy, errors + cross_entropy
        heads = len(actions.heads)
        loss = weighted_mean(losses / heads, batch.weight)
        return loss, (errors / heads, {"loss": loss, "q_mean": actions.mean_best_value(next_values)})


def split_heads(actions: DiscreteActions, outputs: Float[Array, "b h a"]) -> list[Float[Array, "b n a"]]:
    """The outputs of each head."""
    parts = actions.split(jnp.swapaxes(outputs, -1, -2))
    return [jnp.swapaxes(part, -1, -2) for part in parts]


def take_action(outputs: Float[Array, "b n a"], index: Int[Array, "b"]) -> Float[Array, "b a"]:
    """The outputs of one action for each sample."""
    return jnp.take_along_axis(outputs, index[:, None, None], axis=1)[:, 0]


def project_distribution(
    probs: Float[Array, "b a"], reward: Float[Array, "b"], discount: Float[Array, "b"], support: Float[Array, "a"]
) -> Float[Array, "b a"]:
    """The distribution of r + γ G on the same atoms (C51's projection): mass between two atoms is divided linearly."""
    low, high, count = support[0], support[-1], support.shape[0]
    spacing = (high - low) / (count - 1)
    moved = jnp.clip(reward[:, None] + discount[:, None] * support, low, high)
    # Every atom takes from those that land within one spacing of it.
    near = 1.0 - jnp.abs(moved[:, None, :] - support[:, None]) / spacing
    return jnp.sum(jnp.clip(near, 0.0, 1.0) * probs[:, None, :], -1)
