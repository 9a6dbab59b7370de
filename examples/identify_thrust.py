"""Use the dynamics alone: identify a quadrotor's thrust from a flight, by gradient descent through the model."""

import jax
import jax.numpy as jnp

from slipstream.core.geometry import Quat, Vec3
from slipstream.dynamics.quadrotor import PhysicsRandomization, Rotors, racer

ZERO = Vec3(0.0, 0.0, 0.0)
STEPS, DT = 200, 0.005


def heights(thrust):
    """Height over time of a vehicle whose rotors give `thrust` times the nominal thrust."""
    speeds = Rotors(*[jnp.float32(racer.hover_speed * 1.05)] * 4)
    start = jax.tree.map(jnp.float32, racer.hovering(Vec3(0.0, 0.0, 1.0), Quat(1.0, 0.0, 0.0, 0.0), ZERO, ZERO))

    def step(state, _):
        state = racer.step(state, speeds, None, PhysicsRandomization(thrust=thrust), DT)
        return state, state.position.z

    return jax.lax.scan(step, start, length=STEPS)[1]


def main() -> float:
    measured = heights(jnp.float32(0.93))
    misfit = jax.jit(jax.value_and_grad(lambda thrust: jnp.mean((heights(thrust) - measured) ** 2)))
    thrust = jnp.float32(1.0)
    for _ in range(14):
        error, slope = misfit(thrust)
        thrust = thrust - error / slope
    print(f"thrust found: {float(thrust):.4f} of the nominal thrust (true: 0.93)")
    return float(thrust)


if __name__ == "__main__":
    main()
