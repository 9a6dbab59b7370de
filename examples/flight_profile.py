"""Film a scripted flight over a survey country: detection, tracking, navigation, gimbal, stress or full."""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from slipstream.core import device
from slipstream.evaluate.episode import fly, scripted_pilot
from slipstream.plants.fast import FastPlant
from slipstream.report.video import FPS, encode
from slipstream.tasks.survey import Survey
from slipstream.tasks.survey import report as survey
from slipstream.tasks.survey.baselines import PROFILES, fly_script


def main(name: str = "detection", target: str = "profile.mp4", agents: str = "16") -> None:
    device.configure(1)
    task = replace(Survey(mission="free", agents=int(agents)), world_life=0.0, starts="pad")
    pilot = scripted_pilot(partial(fly_script, PROFILES[name], task))
    flown = fly(task, pilot, FastPlant(), episodes=1, seed=1)
    episode = flown.episodes[0]
    frames = int(episode.length * episode.control_dt / 2.0 * FPS)
    canvas = survey.Canvas(task, episode, name, frames, FPS, 2.0, f"the scripted profile ‘{name}’")
    encode(Path(target), canvas, frames, lambda done, total: None)
    print(f"{target}: {episode.length * episode.control_dt:.0f} s of the profile '{name}'")


if __name__ == "__main__":
    main(*sys.argv[1:])
