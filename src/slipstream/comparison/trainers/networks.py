"""The network of the work in torch: layers, activations and first weights as ours."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

from ..work import Work

ACTIVATIONS = {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU, "elu": torch.nn.ELU, "silu": torch.nn.SiLU}


def net(inputs: int, work: Work, outputs: int, gain: float) -> torch.nn.Sequential:
    """Orthogonal weights, an activation between layers, and a last layer of that gain."""
    parts: list[torch.nn.Module] = []
    sizes = (inputs, *work.hidden_sizes, outputs)
    for number, (size, after) in enumerate(pairwise(sizes)):
        last = number == len(sizes) - 2
        layer = torch.nn.Linear(size, after)
        torch.nn.init.orthogonal_(layer.weight, gain if last else 2.0**0.5)
        torch.nn.init.zeros_(layer.bias)
        parts += [layer] if last else [layer, ACTIVATIONS[work.activation]()]
    return torch.nn.Sequential(*parts)


def likeliest(logits: torch.Tensor, choices: tuple[int, ...]) -> torch.Tensor:
    """The likeliest choice of each component."""
    picks: list[Any] = [part.argmax(-1) for part in logits.split(list(choices), dim=-1)]
    return torch.stack(picks, -1).to(torch.int32)


def decay_of(work: Work, samples: float) -> Callable[[int], float]:
    """The fraction of the learning rate that is left after so many steps of a schedule, each of that many samples."""
    return lambda steps: work.learning_rate_after(steps * samples) / work.learning_rate
