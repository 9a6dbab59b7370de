"""Where tasks, learners and presets are found: in the rooms of this package, in installed packages, and in files.

A task is named by a preset, by a library and an environment of it (`brax:ant`), by a file (`FILE.py:Task`) or by a
module (`package.module:Task`). Code is only run if the user named it in this process, if it is part of Slipstream, or
if it belongs to an installed package: a run that comes from elsewhere can name a file, and that file is not loaded.
"""

import importlib
import importlib.metadata
import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .. import tasks
from ..core.errors import suggest
from ..core.task import Task
from ..learn.ac_iqn import AcIqn
from ..learn.ddpg import Ddpg, Td3
from ..learn.distill import Distill
from ..learn.dqn import Dqn
from ..learn.foreign import ForeignPolicy
from ..learn.iqn import Iqn
from ..learn.ppo import Ppo
from ..learn.pqn import Pqn
from ..learn.rainbow import Rainbow
from ..learn.sac import Sac
from ..learn.shac import Shac
from .fields import from_dict

if TYPE_CHECKING:
    from .experiment import Experiment

GROUP = "slipstream.tasks"
"""Entry points of installed packages: each names a module with `PRESETS`, or a task."""
LEARNERS: dict[str, type] = {
    "shac": Shac, "ppo": Ppo, "pqn": Pqn, "dqn": Dqn, "rainbow": Rainbow, "iqn": Iqn, "ddpg": Ddpg, "td3": Td3,
    "sac": Sac, "ac-iqn": AcIqn, "distill": Distill,
}  # fmt: skip
NOT_LEARNERS: dict[str, type] = {"foreign": ForeignPolicy}
"""What stands in the place of a learner in a run that was not trained here."""
_named: dict[str, type[Task[Any]]] = {}
"""Tasks from files that the user has named in this process, by the path and name."""


class TaskNotFoundError(ValueError):
    """A task that is not there, or whose code must not be run."""


# Presets


@cache
def rooms() -> dict[str, ModuleType]:
    """The presets modules of this package's tasks, by the name of the task."""
    found = [info.name for info in pkgutil.iter_modules(tasks.__path__) if info.ispkg]
    loaded = {name: importlib.import_module(f"{tasks.__name__}.{name}.presets") for name in found}
    return dict(sorted(loaded.items(), key=lambda room: getattr(room[1], "ORDER", 100)))


@cache
def outside() -> dict[str, Any]:
    """What installed packages bring, by the name of the entry point; a broken one says so when it is used."""
    found = {}
    for entry in importlib.metadata.entry_points(group=GROUP):
        try:
            found[entry.name] = entry.load()
        except Exception as error:  # somebody else's code
            found[entry.name] = TaskNotFoundError(f"the entry point '{entry.name}' ({entry.value}) fails: {error}")
    return found


@cache
def presets() -> "dict[str, Experiment[Any, Any]]":
    """All presets by name: those of this package first."""
    found: dict[str, Any] = {}
    for room in rooms().values():
        found |= room.PRESETS
    for name, thing in outside().items():
        if isinstance(thing, type) and issubclass(thing, Task):
            found.setdefault(name, default_experiment(thing()))
        else:
            found |= {key: value for key, value in getattr(thing, "PRESETS", {}).items() if key not in found}
    return found


@cache
def task_classes() -> dict[str, type[Task[Any]]]:
    """The tasks of this package and of installed ones, by name."""
    found = {name: room.TASK for name, room in rooms().items()}
    for name, thing in outside().items():
        if isinstance(thing, type) and issubclass(thing, Task):
            found.setdefault(name, thing)
        elif hasattr(thing, "TASK"):
            found.setdefault(name, thing.TASK)
    return found


@cache
def comparisons() -> dict[str, tuple[str, ...]]:
    """Presets that are compared on the same worlds, by the name of the comparison."""
    found: dict[str, tuple[str, ...]] = {}
    for thing in (*rooms().values(), *outside().values()):
        found |= getattr(thing, "COMPARISONS", {})
    return found


def default_experiment(task: Task[Any]) -> "Experiment[Any, Any]":
    """How a task is trained if nobody says otherwise: PPO, which takes every action space."""
    from .experiment import Experiment

    settings: dict[str, Any] = {
        "worlds": max(1024 // task.spec.agents, 8), "learning_rate_schedule": "adaptive", "target_kl": 0.02,
        **task.training_settings,
    }  # fmt: skip
    steps = settings.pop("steps", 4_000_000)
    return Experiment(task, from_dict(Ppo, settings, f"{type(task).__name__}.training_settings"), steps=steps)


def libraries() -> "dict[str, Callable[[str], Experiment[Any, Any]]]":
    """What makes an experiment of the name of an environment, by the library that has it: brax, gymnax, playground."""
    return {name: room.named for name, room in rooms().items() if hasattr(room, "named")}


def problems() -> list[str]:
    """What is wrong with entry points of installed packages."""
    return [str(thing) for thing in outside().values() if isinstance(thing, TaskNotFoundError)]


# Tasks by where they are


def find_task(name: str) -> type[Task[Any]]:
    """The task that the user names: `FILE.py:Task` or `package.module:Task`. This runs the code of that module.

    `ROBOT.xml:Task` is the task in ROBOT.py, beside the file that describes the robot.
    """
    where, _, attribute = name.rpartition(":")
    if not where or not attribute:
        raise TaskNotFoundError(f"'{name}' is no task: write FILE.py:Task or package.module:Task")
    if where.endswith(".xml"):
        where = beside_robot(Path(where))
    if where.endswith(".py"):
        path = Path(where).resolve()
        found = _task_in(load_file(path), attribute, name)
        _named[f"{path}:{attribute}"] = found
        return found
    try:
        module = importlib.import_module(where)
    except ImportError as error:
        raise TaskNotFoundError(f"the module '{where}' cannot be imported: {error}") from error
    return _task_in(module, attribute, name)


def find_recorded_task(source: object) -> type[Task[Any]]:
    """The task that a run or an experiment file records. Runs no code that the user has not named or installed."""
    if not isinstance(source, str) or ":" not in source:
        raise TaskNotFoundError("it does not say which class its task is")
    where, _, attribute = source.rpartition(":")
    if where.endswith(".py"):
        if source in _named:
            return _named[source]
        there = "it is not loaded unless you name it" if Path(where).exists() else "that file is not there any more"
        raise TaskNotFoundError(f"its task is {source}, and {there}: add --task-class {where}:{attribute}")
    module = sys.modules.get(where)
    if module is None:
        package = where.partition(".")[0]
        if package != "slipstream" and package not in importlib.metadata.packages_distributions():
            raise TaskNotFoundError(
                f"its task is {source}, and no installed package has it: install the package, or name the task again "
                f"by --task-class {source}"
            )
        try:
            module = importlib.import_module(where)
        except ImportError as error:
            raise TaskNotFoundError(f"its task is {source}, and that cannot be imported: {error}") from error
    return _task_in(module, attribute, source)


def task_source(task: object) -> str:
    """Where a task comes from, as `find_recorded_task` reads it."""
    kind = type(task)
    return next((source for source, named in _named.items() if named is kind), f"{kind.__module__}:{kind.__qualname__}")


def beside_robot(robot: Path) -> str:
    """The Python file beside an MJCF file: that says what a robot is, not what it is to do."""
    code = robot.with_suffix(".py")
    if not robot.is_file():
        raise TaskNotFoundError(f"there is no file {robot.resolve()}")
    if not code.is_file():
        raise TaskNotFoundError(
            f"{robot} says what a robot is, and not what it is to do: write {code} beside it, with a class that "
            "derives from slipstream.MjcfTask (docs/your-robot.md)"
        )
    return str(code)


def load_file(path: Path) -> ModuleType:
    """The module in a file that the user has named: this runs its code."""
    if not path.is_file():
        raise TaskNotFoundError(f"there is no file {path}")
    name = f"slipstream_task_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TaskNotFoundError(f"{path} cannot be loaded as a module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise TaskNotFoundError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
    return module


def _task_in(module: ModuleType, attribute: str, name: str) -> type[Task[Any]]:
    found = getattr(module, attribute, None)
    if not (isinstance(found, type) and issubclass(found, Task)):
        known = [key for key, value in vars(module).items() if inspect.isclass(value) and issubclass(value, Task)]
        raise TaskNotFoundError(f"{name} is not a task{suggest(attribute, (key for key in known if key != 'Task'))}")
    return found


# Learners


def find_learner(name: object) -> type:
    if not isinstance(name, str) or name not in LEARNERS:
        raise ValueError(f"there is no learner '{name}'{suggest(str(name), LEARNERS)}")
    return LEARNERS[name]


def find_recorded_learner(name: object) -> type:
    """What a run or an experiment file records as its learner."""
    return NOT_LEARNERS[name] if isinstance(name, str) and name in NOT_LEARNERS else find_learner(name)


def learner_name(learner: object) -> str:
    return next(name for name, kind in (LEARNERS | NOT_LEARNERS).items() if type(learner) is kind)
