"""What every policy offers to those who fly it and to those who train it."""

from typing import Any, Protocol, Self, runtime_checkable

from jaxtyping import Array, Float, PyTree

from ..core.task import PackedImage
from .memory import Memory
from .nets import Normalizer

ImageFeatures = Float[Array, "*b e"] | None
"""What an image encoder returns; None for a policy without a camera."""


class Policy(Protocol):
    """A struct of weights that acts. Observations may have leading batch axes."""

    def start(self, *batch: int) -> Memory:
        """Memory at the start of episodes; None for a policy that has none."""
        ...

    def act(
        self, observation: Float[Array, "*b d"], memory: Memory = None, image_features: ImageFeatures = None
    ) -> tuple[Array, Memory]:
        """The best action, without exploration, and the memory after it."""
        ...


@runtime_checkable
class ImagePolicy(Policy, Protocol):
    """A policy that also sees images."""

    def encode(self, image: PackedImage) -> ImageFeatures:
        """Features of an image, computed once for all steps it stays."""
        ...


class TrainablePolicy(Policy, Protocol):
    """A policy whose parameters a gradient changes."""

    @property
    def normalizer(self) -> Normalizer: ...

    @property
    def params(self) -> Any:
        """The parameters that the optimizer updates, as a tree."""
        ...

    def with_params(self, params: PyTree) -> Self:
        """The policy with other parameters."""
        ...
