"""Memory for policies: a gated recurrent unit."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from ..core.struct import struct
from .nets import Linear

Memory = Float[Array, "*b m"] | None
"""What a policy remembers; None for a policy without memory."""

UNROLL = 4
"""Steps of a sequence that are compiled together."""


@struct
class Gru:
    """A gated recurrent unit, with the gates and biases of PyTorch's and ONNX's.

    r, z = σ(x Wx + bx + h Wh + bh)      n = tanh(x Wx + bx + r (h Wh + bh))      h′ = (1 − z) n + z h
    """

    inputs: Linear
    recurrent: Linear

    @classmethod
    def init(cls, key: PRNGKeyArray, inputs: int, size: int) -> "Gru":
        input_key, *gate_keys = jax.random.split(key, 4)
        orthogonal = jnp.concatenate([Linear.init(k, size, size).weight for k in gate_keys], axis=1)
        return cls(Linear.init(input_key, inputs, 3 * size), Linear(orthogonal, jnp.zeros(3 * size)))

    @property
    def size(self) -> int:
        """Numbers that are remembered."""
        return self.recurrent.weight.shape[0]

    def __call__(self, x: Float[Array, "*b i"], memory: Float[Array, "*b m"]) -> Float[Array, "*b m"]:
        """The memory once `x` has been seen."""
        return self._next(self.inputs(x), memory)

    def _next(self, seen: Float[Array, "*b g"], memory: Float[Array, "*b m"]) -> Float[Array, "*b m"]:
        """The same from `inputs(x)`."""
        remembered, size = self.recurrent(memory), self.size
        reset, keep = jnp.split(jax.nn.sigmoid(seen[..., : 2 * size] + remembered[..., : 2 * size]), 2, axis=-1)
        new = jnp.tanh(seen[..., 2 * size :] + reset * remembered[..., 2 * size :])
        return new + keep * (memory - new)

    def over_sequence(
        self, x: Float[Array, "n t i"], memory: Float[Array, "n m"], ended: Bool[Array, "n t"]
    ) -> Float[Array, "n t m"]:
        """The memory after each step of sequences. What follows a step in which the episode had `ended` starts anew."""

        def step(memory: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
            seen, ended = now
            memory = self._next(seen, memory)
            return forget(memory, ended), memory

        inputs = jnp.swapaxes(self.inputs(x), 0, 1), jnp.swapaxes(ended, 0, 1)
        return jnp.swapaxes(jax.lax.scan(step, memory, inputs, unroll=UNROLL)[1], 0, 1)


def forget(memory: Float[Array, "*b m"], ended: Bool[Array, "*b"]) -> Float[Array, "*b m"]:
    """The memory with which the next step begins."""
    return jnp.where(ended[..., None], 0.0, memory)
