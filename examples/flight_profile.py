"""Film a scripted flight over a survey world: detection, tracking, navigation, gimbal, stress or full."""

import sys
from functools import partial
from pathlib import Path

from slipstream.core import device
from slipstream.evaluation.pilot import scripted_pilot
from slipstream.evaluation.runner import run_episodes
from slipstream.plants.fast import FastPlant
from slipstream.reports.video import FPS, encode
from slipstream.tasks.survey import Survey
from slipstream.tasks.survey.baselines import fly_script
from slipstream.tasks.survey.profiles import PROFILES
from slipstream.tasks.survey.report import SurveyCanvas

PACE = 2.0
"""Seconds of flight in a second of film."""


def main(name: str = "detection", target: str = "profile.mp4", agents: str = "16") -> None:
    device.configure(1)
    task = Survey(mission="free", agents=int(agents), mean_world_lifetime=0.0, start_mode="pad")
    pilot = scripted_pilot(partial(fly_script, PROFILES[name], task))
    episode = run_episodes(task, pilot, FastPlant(), 1, seed=1).episodes[0]
    seconds = episode.length * episode.control_dt
    frames = int(seconds / PACE * FPS)
    canvas = SurveyCanvas(task, episode, name, frames, FPS, PACE, f"the scripted profile ‘{name}’")
    encode(Path(target), canvas, frames, lambda done, total: None)
    print(f"{target}: {seconds:.0f} s of the profile '{name}'")


if __name__ == "__main__":
    main(*sys.argv[1:])
