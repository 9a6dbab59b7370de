"""The generator of the hot path: a hash of a counter, cheap enough to be fused into a step."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Integer, UInt32

from .struct import struct

Word = UInt32[Array, "*b"]
Index = Integer[Array, ""] | int
Bound = Float[Array, ""] | float


def mix(x: Word) -> Word:
    """A bijection of 32-bit words in which every input bit reaches every output bit."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def gaussian(bits: Word) -> Float[Array, "*b"]:
    """The standard Gaussian number that a random word stands for."""
    # 23 bits and a half: the ends ±1, whose inverse is infinite, cannot come up by rounding.
    centred = ((bits >> 9).astype(jnp.int32).astype(jnp.float32) + 0.5) * 2.0**-22 - 1.0
    return jax.lax.erf_inv(centred) * 2.0**0.5


def approx_gaussian(bits: Word) -> Float[Array, "*b"]:
    """A number of mean zero and spread one that is nearly Gaussian: the sum of the four bytes of a random word.

    Nothing lies beyond 3.46 spreads. For noise of which much is needed every step, and no tails.
    """
    pairs = (bits & jnp.uint32(0x00FF00FF)) + ((bits >> 8) & jnp.uint32(0x00FF00FF))
    total = ((pairs & jnp.uint32(0xFFFF)) + (pairs >> 16)).astype(jnp.int32).astype(jnp.float32)
    return (total - 510.0) * (1.0 / math.sqrt(4.0 * (256.0**2 - 1.0) / 12.0))


@struct
class Rng:
    """A world's own stream of random numbers; drawing returns the stream that comes after.

    The two words of a stream are different hashes of run seed and world index. The first is a bijection of the
    index, so no two worlds of a run share it; the second enters between the rounds, so streams
    whose counters overlap still differ. The period is 2³² draws.
    """

    stream: Word
    salt: Word
    drawn: Word

    @classmethod
    def from_seed(cls, seed: Index, world: Index) -> "Rng":
        """The stream of one world of a run, whatever device it lives on."""
        seed = mix(jnp.asarray(seed, jnp.uint32) + jnp.uint32(0x9E3779B9))
        world = jnp.asarray(world, jnp.uint32)
        salt = mix(mix(world + jnp.uint32(0x85EBCA6B)) ^ mix(seed))
        return cls(mix(world ^ seed), salt, jnp.uint32(0))

    @jax.jit  # traced once for all draws
    def bits(self) -> tuple[Word, "Rng"]:
        """32 random bits."""
        bits = mix(mix(self.drawn * jnp.uint32(0x9E3779B9) + self.stream) ^ self.salt)
        return bits, replace(self, drawn=self.drawn + jnp.uint32(1))

    def uniform(self, low: Bound = 0.0, high: Bound = 1.0) -> tuple[Float[Array, ""], "Rng"]:
        """A number in [low, high)."""
        bits, after = self.bits()
        unit = (bits >> 8).astype(jnp.int32).astype(jnp.float32) * 2.0**-24
        return low + unit * (high - low), after

    def normal(self, scale: Bound = 1.0) -> tuple[Float[Array, ""], "Rng"]:
        """A Gaussian number of mean zero, by the inverse of its distribution."""
        bits, after = self.bits()
        return gaussian(bits) * scale, after

    def approx_normal(self, scale: Bound = 1.0) -> tuple[Float[Array, ""], "Rng"]:
        """Nearly a Gaussian number of mean zero, at a third of the price."""
        bits, after = self.bits()
        return approx_gaussian(bits) * scale, after

    def fork(self, branch: Index) -> "Rng":
        """A stream of its own for a part of the world, such as one agent; this one is not advanced.

        Of the same branch it is another after every draw, and does not overlap with those before it.
        """
        branch = mix(jnp.asarray(branch, jnp.uint32) + jnp.uint32(0xC2B2AE35))
        salt = mix(self.salt + branch + self.drawn * jnp.uint32(0x632BE5AB))
        return Rng(mix(self.stream ^ branch), salt, jnp.zeros_like(self.drawn))

    def integer(self, count: int) -> tuple[Int[Array, ""], "Rng"]:
        """A whole number in [0, count), as int32."""
        unit, after = self.uniform()
        return jnp.minimum((unit * count).astype(jnp.int32), count - 1), after
