"""Settings of learners that several presets share."""

from typing import Any

OFF_POLICY_FAST: dict[str, Any] = {
    "worlds": 128, "rollout_length": 4, "gradient_steps": 16, "batch_size": 256, "capacity": 1_000_000,
    "learning_starts": 20_000, "n_step": 3, "learning_rate": 2e-3, "learning_rate_final_fraction": 0.05,
    "layer_norm": True, "hidden_sizes": (128, 128), "tau": 0.01, "huber_delta": 50.0,
}  # fmt: skip
"""Many worlds, large batches and layer normalization: for simulators that step many worlds at once."""

SMALL_DISCRETE: dict[str, Any] = {
    "worlds": 8, "rollout_length": 8, "gradient_steps": 8, "batch_size": 256, "capacity": 100_000,
    "learning_starts": 1000, "n_step": 5, "learning_rate": 1e-3, "learning_rate_final_fraction": 0.05, "tau": 0.01,
    "epsilon_end": 0.02, "exploration_fraction": 0.3,
}  # fmt: skip
"""Few worlds and many gradient steps: for small tasks with discrete actions."""

SMALL_CONTINUOUS: dict[str, Any] = {
    "worlds": 4, "rollout_length": 1, "gradient_steps": 4, "batch_size": 256, "capacity": 50_000,
    "learning_starts": 1000, "n_step": 1, "learning_rate": 1e-3, "discount": 0.98, "tau": 0.01,
}  # fmt: skip
"""Few worlds and many gradient steps: for small tasks with continuous actions."""
