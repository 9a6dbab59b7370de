"""Which task an adapter wraps: a preset, a task by where it is, or a task itself, with other settings if wanted."""

from typing import Any

from ..core import device
from ..core.errors import suggest
from ..core.task import AnyTask, Task
from ..experiment import registry
from ..experiment.fields import from_dict, to_dict

TaskLike = str | AnyTask


def find_task(what: TaskLike, evaluation: bool = False, **settings: Any) -> AnyTask:
    """The task of a preset, `FILE.py:Task`, `package.module:Task` or a task, with these settings.

    With `evaluation` it is the task as it is evaluated, whose episodes may be longer than those trained on.
    """
    task = what if isinstance(what, Task) else _named(what)
    if settings:
        task = from_dict(type(task), to_dict(task) | settings, "task")
    task = task.with_files()
    return task.for_evaluation() if evaluation else task


def _named(name: str) -> AnyTask:
    known = registry.presets()
    if name in known:
        return known[name].task
    library, _, environment = name.partition(":")
    if environment and library in registry.libraries():
        return registry.libraries()[library](environment).task
    if ":" not in name:
        raise ValueError(f"there is no preset '{name}'{suggest(name, known)}")
    return registry.find_task(name)()


def configure(task: AnyTask) -> None:
    """Set up JAX for one device, before anything is compiled."""
    device.configure(1, task.spec.image_shape is not None, task.wide_vectors)


def episode_limit(task: AnyTask) -> int:
    """Steps after which an episode is cut off, as far as the task says so in its settings."""
    if hasattr(task, "max_steps"):
        return int(getattr(task, "max_steps"))  # noqa: B009
    seconds = getattr(task, "train_time_limit", 0.0) or getattr(task, "time_limit", 0.0)
    return max(1, round(float(seconds) / task.spec.control_dt)) if seconds else 1000
