"""Train recovery to hover by TorchRL's PPO loss, and score the policy on worlds it has not seen.

python examples/train_with_torchrl.py hover-torchrl.pt 370
"""

import sys

import torch
from tensordict.nn import AddStateIndependentNormalScale, InteractionType, TensorDictModule
from torchrl.envs.utils import step_mdp
from torchrl.modules import IndependentNormal, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from slipstream.adapters.arrays import from_torch, to_torch
from slipstream.adapters.torchrl import SlipstreamEnv
from slipstream.adapters.trial import score

STEPS, EPOCHS, BATCH = 64, 5, 512


def net(inputs: int, outputs: int, gain: float) -> torch.nn.Sequential:
    layers = [torch.nn.Linear(inputs, 64), torch.nn.Linear(64, 64), torch.nn.Linear(64, outputs)]
    for layer, scale in zip(layers, (2**0.5, 2**0.5, gain), strict=True):
        torch.nn.init.orthogonal_(layer.weight, scale)
        torch.nn.init.zeros_(layer.bias)
    return torch.nn.Sequential(layers[0], torch.nn.Tanh(), layers[1], torch.nn.Tanh(), layers[2])


def main(path: str = "hover-torchrl.pt", iterations: int = 370) -> float:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    env = SlipstreamEnv("hover", worlds=64)
    inputs, outputs = env.observation_spec["observation"].shape[-1], env.action_spec.shape[-1]
    mean, spread = net(inputs, outputs, 0.01), AddStateIndependentNormalScale(outputs, scale_mapping="exp")
    torch.nn.init.constant_(spread.state_independent_scale, -1.0)
    module = TensorDictModule(torch.nn.Sequential(mean, spread), ["observation"], ["loc", "scale"])
    actor = ProbabilisticActor(
        module, in_keys=["loc", "scale"], distribution_class=IndependentNormal, return_log_prob=True,
        default_interaction_type=InteractionType.RANDOM,
    )  # fmt: skip
    critic = ValueOperator(net(inputs, 1, 1.0))
    loss = ClipPPOLoss(actor, critic, entropy_bonus=False, critic_coeff=0.5, normalize_advantage=True)
    advantage = GAE(gamma=0.97, lmbda=0.95, value_network=critic)
    optimizer, state = torch.optim.Adam(loss.parameters(), 1e-3), env.reset()
    for _ in range(iterations):
        with torch.no_grad():
            rows = env.rollout(STEPS, actor, auto_reset=False, break_when_any_done=False, tensordict=state)
            state = env.maybe_reset(step_mdp(rows[..., -1]))
            rows = advantage(rows).reshape(-1)
        for batch in torch.stack([torch.randperm(len(rows)) for _ in range(EPOCHS)]).reshape(-1, BATCH):
            found = loss(rows[batch])
            optimizer.zero_grad()
            (found["loss_objective"] + found["loss_critic"]).backward()
            torch.nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
            optimizer.step()
    torch.save(actor.state_dict(), path)
    found = score("hover", lambda observed: from_torch(mean(to_torch(observed.features))))
    print(f"{100 * found['success']:.1f} % hover; the policy is {path}")
    return found["success"]


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:3]))
