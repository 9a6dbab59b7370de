"""Checks shapes while the tests run, and sets JAX up as `slipstream` does."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from jaxtyping import install_import_hook

HOOK = install_import_hook(
    ["slipstream.core.rng", "slipstream.learn.returns", "slipstream.policy.image_encoders", "slipstream.policy.nets"],
    "beartype.beartype",
)

from slipstream.core import device

device.configure(2)
