"""An experiment is a task, a learner and a budget; presets are experiments with a name."""

import dataclasses
import typing
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from ..core.errors import nearest
from ..learn.ac_iqn import AcIqn
from ..learn.ddpg import Ddpg, Td3
from ..learn.dqn import Dqn
from ..learn.iqn import Iqn
from ..learn.ppo import Ppo
from ..learn.pqn import Pqn
from ..learn.rainbow import Rainbow
from ..learn.sac import Sac
from ..tasks.gymnax.task import Gymnax
from ..tasks.marine import Marine
from ..tasks.racing import Racing
from ..tasks.survey import Survey

SEEDS = 2**31
"""Seeds are below this."""
Task = TypeVar("Task")
Learner = TypeVar("Learner")

TASKS: dict[str, type] = {"racing": Racing, "survey": Survey, "marine": Marine, "gymnax": Gymnax}
LEARNERS: dict[str, type] = {
    "ppo": Ppo, "pqn": Pqn, "dqn": Dqn, "rainbow": Rainbow, "iqn": Iqn, "ddpg": Ddpg, "td3": Td3, "sac": Sac,
    "ac-iqn": AcIqn,
}  # fmt: skip


@dataclass(frozen=True)
class Experiment(Generic[Task, Learner]):
    """What is trained, how, and for how long."""

    task: Task
    learner: Learner
    steps: int = 30_000_000
    """steps of all worlds together, each of all its agents; schedules run over them"""
    seed: int = 0
    seeds: int = 1
    """how many seeds train at once"""
    devices: int = 0
    """devices to train on; 0 is all of them, and on a CPU every core is one"""
    average: float = 0.3
    """share of the training, at its end, whose weights are averaged to the policy that is handed over; 0 is none"""
    origin: str = ""
    """folder of a run whose policy this training begins with; `--from` sets it"""

    def __post_init__(self) -> None:
        if not 0.0 <= self.average <= 1.0:
            raise ValueError("average is a share of the training, between 0 and 1")
        if self.steps < 1 or self.seeds < 1 or self.devices < 0 or not 0 <= self.seed < SEEDS:
            raise ValueError("steps and seeds must be at least 1, devices and seed not negative")

    @property
    def updates(self) -> int:
        return max(1, round(self.steps / self.learner.samples))  # pyright: ignore[reportAttributeAccessIssue]

    def as_dict(self) -> dict[str, Any]:
        """Plain data: names of task and learner, and every field."""
        return {
            "task": {"name": name_of(TASKS, self.task), **dataclasses.asdict(self.task)},  # pyright: ignore[reportArgumentType]
            "learner": {"name": name_of(LEARNERS, self.learner), **dataclasses.asdict(self.learner)},  # pyright: ignore[reportArgumentType]
            **{f.name: getattr(self, f.name) for f in dataclasses.fields(self)[2:]},
        }

    @classmethod
    def from_dict(cls, data: Any) -> "Experiment[Any, Any]":
        """The experiment that `as_dict` described; anything else is refused in words."""
        if not isinstance(data, dict):
            raise ValueError("an experiment is an object with task, learner and settings")
        parts = {name: build(table, name, data.get(name)) for name, table in (("task", TASKS), ("learner", LEARNERS))}
        # A fitted preset also says how it was found.
        rest = {name: value for name, value in data.items() if name not in (*parts, "fitted")}
        return cls(**parts, **checked(cls, rest, "experiment"))


def name_of(table: dict[str, type], part: Any) -> str:
    return next(name for name, kind in table.items() if type(part) is kind)


def build(table: dict[str, type], what: str, data: Any) -> Any:
    """A task or learner from its name and fields."""
    if not isinstance(data, dict) or not isinstance(data.get("name"), str):
        raise ValueError(f"the {what} of an experiment needs a name")
    kind = table.get(data["name"])
    if kind is None:
        raise ValueError(f"there is no {what} '{data['name']}'{nearest(data['name'], table)}")
    return kind(**checked(kind, {k: v for k, v in data.items() if k != "name"}, what))


def checked(kind: type, values: dict[str, Any], what: str) -> dict[str, Any]:
    """`values`, if every one of them is a field of `kind` and of its type."""
    hints = typing.get_type_hints(kind)
    fields = {f.name for f in dataclasses.fields(kind)} - {"task", "learner"}
    result = {}
    for name, value in values.items():
        if name not in fields:
            raise ValueError(f"a {what} has no field '{name}'{nearest(name, fields)}")
        default = hints[name]
        if isinstance(value, list):
            value = tuple(value)
        if dataclasses.is_dataclass(default):
            if not isinstance(value, dict):
                raise ValueError(f"{what} field '{name}' is an object with settings, not {value!r}")
            value = default(**checked(typing.cast(type, default), value, name))  # pyright: ignore[reportCallIssue]
        if not fits(default, value):
            wanted = getattr(default, "__name__", "") if typing.get_origin(default) is None else str(default)
            raise ValueError(f"{what} field '{name}' takes {wanted.removeprefix('typing.')}, not {value!r}")
        result[name] = float(value) if default is float else value  # pyright: ignore[reportArgumentType]
    return result


def fits(kind: Any, value: Any) -> bool:
    """Whether a value from outside can be a field of that type: of the right size, known, and if a number, finite."""
    parts = typing.get_args(kind)
    if typing.get_origin(kind) is typing.Literal:
        return any(value == part and type(value) is type(part) for part in parts)
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, tuple):
            return False
        parts = parts[:1] * len(value) if parts[-1] is Ellipsis else parts
        return len(parts) == len(value) and all(map(fits, parts, value))
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and -1e300 < value < 1e300
    if kind in (int, str, bool):
        return type(value) is kind
    return True


race = Experiment(
    task=Racing(
        practice_limit=8.0,
        progress_reward=1.0,
        gate_reward=1.0,
        aside_reward=0.5,
        miss_reward=-5.0,
        crash_reward=-5.0,
    ),
    learner=Ppo(
        worlds=2048,
        length=32,
        epochs=2,
        minibatches=8,
        rate=1e-3,
        schedule="adaptive",
        target_kl=0.03,
        target_kl_end=0.1,
        settle=0.5,
    ),
    steps=48_000_000,
)
# Fifty decisions a second, not a hundred: as far-sighted with half the steps, so twice the flights in a training.
# The margin is what keeps its lines clear of the frames.
racing = replace(
    race,
    task=replace(race.task, control_rate=50, gate_margin=0.03),
    learner=replace(race.learner, discount=0.98, trace=0.9, target_kl_end=0.03),
    steps=92_000_000,
    # Single policies of the second half differ by several per cent in how many starts they master; their mean less.
    average=0.5,
)

survey = Experiment(
    task=Survey(),
    learner=Ppo(
        worlds=128,
        length=32,
        epochs=2,
        minibatches=8,
        schedule="adaptive",
        target_kl=0.02,
        settle=0.5,
        discount=0.996,
        hidden=(128, 128),
    ),
    steps=1_000_000,
)
mission = replace(survey, learner=replace(survey.learner, target_kl_end=0.03), steps=3_000_000)

fast_learning: dict[str, Any] = {
    "worlds": 128, "length": 4, "learns": 16, "batch": 256, "capacity": 1_000_000, "warmup": 20_000, "steps": 3,
    "rate": 2e-3, "rate_end": 0.05, "norm": True, "hidden": (128, 128), "follow": 0.01, "width": 50.0,
}  # fmt: skip
"""Many worlds, large batches and layer norm: what suits a batched simulator."""

as_published: dict[str, Any] = {
    "worlds": 8, "length": 4, "learns": 8, "batch": 64, "capacity": 1_000_000, "warmup": 2_000, "steps": 1,
    "rate": 1e-4, "rate_end": 1.0, "copy": 2_500, "gradient_norm": 0.5, "norm": False, "normalise": False,
    "explore": 0.6, "explore_end": 0.05, "explore_share": 0.25,
}  # fmt: skip
"""What the marine agents were published with: one small batch for every fourth step, and a target copied now and then.
It wastes a simulator that steps thousands of vessels in the time of one batch."""

classic_choices: dict[str, Any] = {
    "worlds": 8, "length": 8, "learns": 8, "batch": 256, "capacity": 100_000, "warmup": 1000, "steps": 5,
    "rate": 1e-3, "rate_end": 0.05, "follow": 0.01, "explore_end": 0.02, "explore_share": 0.3,
}  # fmt: skip
classic_numbers: dict[str, Any] = {
    "worlds": 4, "length": 1, "learns": 4, "batch": 256, "capacity": 50_000, "warmup": 1000, "steps": 1,
    "rate": 1e-3, "discount": 0.98, "follow": 0.01,
}  # fmt: skip
"""Few worlds, much learning from each step: what is usual for small tasks, by choices and by numbers."""

icra = Marine(
    vessels=7, buoys=8, vehicle="dot", space="discrete", slots=10, reach=15.0, noise=0.0, rules=False, size=50.0,
    distance=40.0, first_distance=30.0, apart=5.0, time_limit=180.0, vortices=8, step_reward=-1.0, hit_reward=-50.0,
    goal_reward=100.0,
)  # fmt: skip
iros = Marine(
    vessels=1, buoys=8, vehicle="dot", space="discrete", sensing="sonar", reach=10.0, rules=False,
    size=50.0, distance=30.0, first_distance=20.0, buoy_radius=(1.0, 3.0), vortices=6, control_dt=1.0,
    step_reward=-1.0, hit_reward=-50.0, goal_reward=100.0,
)  # fmt: skip
choosing = Marine(space="discrete")
marine = Experiment(
    task=Marine(),
    # Narrower than the others' loss, and careful near things instead: decision 0011.
    learner=replace(AcIqn(**fast_learning), width=10.0, explore=0.3, adaptive=10.0),
    steps=1_200_000,
    devices=1,
)
brief = replace(marine, steps=600_000)

PRESETS: dict[str, Experiment[Any, Any]] = {
    "racing": racing,
    "racing-demo": replace(racing, steps=48_000_000),
    "racing-generated": replace(race, task=replace(race.task, track="generated"), steps=60_000_000),
    "racing-vision": replace(
        race,
        task=replace(race.task, sight="depth", pixels=40, interval=4, start_tilt=0.3, start_turn=0.4),
        learner=replace(race.learner, worlds=512, hidden=(128, 128), guess=1.0),
        steps=40_000_000,
    ),
    "survey-transit": replace(mission, task=Survey(starts="both"), learner=replace(mission.learner, discount=0.998)),
    "survey-coverage": replace(mission, task=Survey(mission="coverage"), steps=2_500_000),
    "survey-search": replace(mission, task=Survey(mission="search"), steps=2_000_000),
    "survey-multi": replace(mission, task=Survey(mission="multi-objective")),
    "survey-dwell": replace(survey, task=Survey(mission="dwell")),
    "dwell-vision": replace(
        survey,
        task=Survey(mission="dwell", sight="rgb", pixels=40, interval=4),
        learner=replace(survey.learner, block=16),
        steps=600_000,
    ),
    "marine": marine,
    "marine-classic": replace(marine, learner=AcIqn(**as_published, twin=False, noise=0.0), steps=6_000_000),
    "marine-sac": replace(brief, learner=Sac(**fast_learning)),
    "marine-td3": replace(brief, learner=Td3(**fast_learning)),
    "marine-ddpg": replace(brief, learner=Ddpg(**fast_learning)),
    "marine-iqn": replace(brief, task=choosing, learner=Iqn(**fast_learning)),
    "marine-rainbow": replace(marine, task=choosing, learner=Rainbow(**fast_learning)),
    "marine-dqn": replace(brief, task=choosing, learner=Dqn(**fast_learning)),
    "marine-pqn": replace(marine, task=choosing, learner=Pqn(worlds=256, trace=0.9), steps=3_000_000),
    "marine-icra": replace(marine, task=icra, learner=Iqn(**fast_learning, adaptive=10.0), steps=2_000_000),
    "marine-iros": replace(marine, task=iros, learner=Iqn(**fast_learning, adaptive=10.0), steps=2_000_000),
    "cartpole": Experiment(Gymnax("CartPole-v1", 475.0), Dqn(**classic_choices), 100_000, devices=1),
    "acrobot": Experiment(
        Gymnax("Acrobot-v1", -90.0),
        replace(Iqn(**classic_choices), scale=0.1, discount=0.98, rate=2e-3),
        100_000,
        devices=1,
    ),
    "mountaincar": Experiment(
        Gymnax("MountainCar-v0", -125.0),
        replace(Dqn(**classic_choices), explore_share=0.5, hold=25),
        150_000,
        devices=1,
    ),
    "pendulum": Experiment(Gymnax("Pendulum-v1", -200.0), Sac(**classic_numbers), 20_000, devices=1),
}
"""What `slipstream train` knows by name."""

COMPARISONS: dict[str, tuple[str, ...]] = {
    "marine": ("marine", *(f"marine-{name}" for name in ("sac", "td3", "ddpg", "iqn", "rainbow", "dqn", "pqn"))),
}
"""What `slipstream compare` knows by name: presets whose agents sail the same worlds."""
