"""CPU time of a MAVLink message, ours beside pymavlink: packing HIL_SENSOR and parsing HIL_ACTUATOR_CONTROLS.

    python benchmarks/mavlink_cost.py

Both run alternately in one process, and the best of several rounds counts. From it follows the fraction of a core that
PX4 instances cost at 250 messages a second each, times the speed relative to real time.
"""

import argparse
import json
import time

from pymavlink.dialects.v20 import common

from slipstream.plants import mavlink

SENSOR = (123456, 1.0, 2.0, -9.8, 0.1, 0.2, 0.3, 0.21, 0.01, 0.43, 955.0, 0.0, 488.0, 20.0, 0x1BFF, 0)
RATE = 250


def microseconds(work, count):
    began = time.process_time()
    for _ in range(count):
        work()
    return 1e6 * (time.process_time() - began) / count


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--count", type=int, default=4000, help="messages of a round")
    options.add_argument("--instances", type=int, default=16)
    chosen = options.parse_args()
    speaker, listener = mavlink.Speaker(), mavlink.Listener()
    theirs = common.MAVLink(None, srcSystem=255, srcComponent=190)
    reader = common.MAVLink(None)
    reply = mavlink.Speaker(1, 1).pack(
        mavlink.HIL_ACTUATOR_CONTROLS, 123456, 1, 0.5, 0.51, 0.52, 0.53, *[0.0] * 12, 129
    )
    assert speaker.pack(mavlink.HIL_SENSOR, *SENSOR) == theirs.hil_sensor_encode(*SENSOR).pack(theirs)
    assert next(iter(listener.feed(reply))).values[2] == reader.parse_buffer(reply)[0].controls[0]
    works = {
        "ours pack": lambda: speaker.pack(mavlink.HIL_SENSOR, *SENSOR),
        "pymavlink pack": lambda: theirs.hil_sensor_encode(*SENSOR).pack(theirs),
        "ours parse": lambda: list(listener.feed(reply)),
        "pymavlink parse": lambda: reader.parse_buffer(reply),
    }
    best = dict.fromkeys(works, float("inf"))
    for _ in range(chosen.rounds):
        for name, work in works.items():
            best[name] = min(best[name], microseconds(work, chosen.count))
    result = {"microseconds": {name: round(value, 2) for name, value in best.items()}}
    for side in ("ours", "pymavlink"):
        pair = best[f"{side} pack"] + best[f"{side} parse"]
        result[f"{side}_core_fraction"] = {
            f"{speed:g} times real time": round(1e-6 * pair * RATE * chosen.instances * speed, 3)
            for speed in (1.0, 2.0, 3.0, 4.0)
        }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
