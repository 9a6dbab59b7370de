"""Ours: the whole loop as one program."""

from dataclasses import replace

import jax
import jax.numpy as jnp

from ...adapters.vector import Observation
from ...experiment import registry
from ...learn.ppo import Ppo
from ...runs.train import trainer_of
from ..meter import Meter
from ..work import Work


def train(work: Work, meter: Meter) -> None:
    experiment = replace(registry.presets()[work.preset], seed=work.seed, devices=1)
    if not work.own_preset:
        assert isinstance(experiment.learner, Ppo)
        # The batch of another number of worlds divides into other blocks.
        learner = replace(
            experiment.learner,
            worlds=work.worlds,
            rollout_length=work.rollout_length,
            epochs=work.epochs,
            minibatches=work.minibatches,
            learning_rate=work.learning_rate,
            learning_rate_schedule="adaptive" if work.adaptive_learning_rate else "constant",
        )
        experiment = replace(experiment, learner=learner)
    if work.samples:
        experiment = replace(experiment, steps=work.samples)
    per_update = experiment.learner.steps_per_update * experiment.task.spec.agents
    trainer = trainer_of(experiment, 4)
    chunk, state = trainer.compile(), trainer.start(work.seed)
    best = jax.jit(lambda policy, observed: policy.act(observed, None)[0])
    updates = 0
    while True:
        state, _metrics, _stats = chunk(state)
        jax.block_until_ready(state.updates)
        updates += trainer.chunk_length
        policy = state.average if getattr(state, "average", None) is not None else state.policy

        def act(observed: Observation, policy: object = policy) -> jax.Array:
            return best(policy, jnp.asarray(observed.features))

        meter.look(updates * per_update, act)
