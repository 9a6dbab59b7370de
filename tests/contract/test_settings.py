"""Every setting explains itself, and in the field's words."""

import ast
import dataclasses
import inspect
import textwrap
import typing

import pytest

from slipstream.cli import bench, compare, evaluate, fit, options, parity, report, training, video
from slipstream.experiment.experiment import Experiment
from slipstream.experiment.registry import LEARNERS, task_classes
from slipstream.plants.settings import PlantSettings

COMMANDS = (
    bench.BenchOptions, compare.CompareOptions, evaluate.EvaluateOptions, fit.FitOptions, options.JsonOption,
    parity.ParityOptions, report.ReportOptions, training.RunOptions, video.VideoOptions, PlantSettings,
)  # fmt: skip
PRIVATE = ("told", "looks at", "pictures", "whirl", "country", "sortie's idea", "normalise", "colour", "behaviour")


def nested(kind):
    """A dataclass and those of its fields."""
    yield kind
    for hint in typing.get_type_hints(kind).values():
        if dataclasses.is_dataclass(hint):
            yield from nested(hint)


def documented(kind):
    """The fields of a class that have a string under them, and that string."""
    found = {}
    for base in reversed(kind.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0].body
        for before, after in zip(body, [*body[1:], ast.Pass()], strict=True):
            if isinstance(before, ast.AnnAssign) and isinstance(after, ast.Expr):
                found[before.target.id] = after.value.value
    return found


KINDS = {k for kind in (*LEARNERS.values(), *task_classes().values(), Experiment, *COMMANDS) for k in nested(kind)}


@pytest.mark.parametrize("kind", sorted(KINDS, key=lambda k: k.__qualname__), ids=lambda k: k.__qualname__)
def test_every_setting_has_a_help_text_in_plain_words(kind):
    texts = documented(kind)
    fields = [f.name for f in dataclasses.fields(kind) if f.init and f.name not in ("task", "learner")]
    missing = [name for name in fields if name not in texts]
    assert not missing
    for name in fields:
        assert not [word for word in PRIVATE if word in texts[name]], (name, texts[name])
