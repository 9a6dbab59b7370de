"""What every policy offers to those who fly it and to those who train it."""

from typing import Any, Protocol, Self

from jaxtyping import Array, Float

from .nets import Normalizer

ImageFeatures = Float[Array, "*b e"] | None
"""What an image encoder returns; None for a policy without a camera."""


class Policy(Protocol):
    """A struct of weights that acts. Observations may have leading batch axes."""

    def start(self) -> None:
        """Memory at the start of an episode: no policy here has one."""
        ...

    def act(
        self, observation: Float[Array, "*b d"], memory: None = None, image_features: ImageFeatures = None
    ) -> tuple[Array, None]:
        """The best action, without exploration, and the memory after it."""
        ...


class TrainablePolicy(Policy, Protocol):
    """A policy whose parameters a gradient changes."""

    @property
    def normalizer(self) -> Normalizer: ...

    @property
    def params(self) -> Any:
        """The parameters that the optimizer updates, as a tree."""
        ...

    def with_params(self, params: Any) -> Self:
        """The policy with other parameters."""
        ...
