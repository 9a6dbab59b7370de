"""The network of the work in torch: layers, activations and first weights as ours."""

from itertools import pairwise
from typing import Any

import torch


def net(inputs: int, hidden: tuple[int, ...], outputs: int, gain: float) -> torch.nn.Sequential:
    """Orthogonal weights, tanh between layers, and a last layer of that gain."""
    parts: list[torch.nn.Module] = []
    sizes = (inputs, *hidden, outputs)
    for number, (size, after) in enumerate(pairwise(sizes)):
        last = number == len(sizes) - 2
        layer = torch.nn.Linear(size, after)
        torch.nn.init.orthogonal_(layer.weight, gain if last else 2.0**0.5)
        torch.nn.init.zeros_(layer.bias)
        parts += [layer] if last else [layer, torch.nn.Tanh()]
    return torch.nn.Sequential(*parts)


def likeliest(logits: torch.Tensor, choices: tuple[int, ...]) -> torch.Tensor:
    """The likeliest choice of each component."""
    picks: list[Any] = [part.argmax(-1) for part in logits.split(list(choices), dim=-1)]
    return torch.stack(picks, -1).to(torch.int32)
