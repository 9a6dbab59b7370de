"""Arrays from our programs to other libraries and back: by DLPack without a copy, or as NumPy arrays of their own."""

from typing import Any, TypeVar

import jax
import numpy as np
from jaxtyping import Array

from .libraries import load

T = TypeVar("T")


def to_numpy(tree: Any) -> Any:
    """The same tree of NumPy arrays that may be written to."""
    return jax.tree.map(lambda x: np.array(x), tree)


def to_torch(array: Array) -> Any:
    """A tensor that shares the array's memory. A step makes new arrays, so it stays as it is."""
    return load("torch", "a tensor").from_dlpack(array)


def own_tensor(array: Array) -> Any:
    """A tensor with memory of its own, for a library that writes into what it gets."""
    return to_torch(array).clone()


def from_torch(tensor: Any) -> Array:
    """An array that shares the tensor's memory, if that is contiguous and aligned to 64 bytes as fresh tensors are."""
    torch = load("torch", "a tensor")
    tensor = tensor.detach()
    if tensor.dtype == torch.int64:
        tensor = tensor.to(torch.int32)  # what JAX counts with
    return jax.dlpack.from_dlpack(tensor.contiguous())


def torch_device() -> str:
    """Where our arrays are, as torch calls it."""
    return "cuda" if jax.default_backend() in ("gpu", "cuda", "rocm") else "cpu"


def mean_of(values: Any) -> float:
    """The mean of the numbers among the values; NaN if there are none, as for a metric that does not apply."""
    found = np.asarray(values)
    found = found[np.isfinite(found)]
    return float(found.mean()) if found.size else float("nan")
