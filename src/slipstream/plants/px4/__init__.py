"""The PX4 plant: the real autopilot, in lockstep, with the MuJoCo vehicle as its world.

The simulator listens and PX4 connects. Every HIL_SENSOR is one step of PX4's clock and is answered by one
HIL_ACTUATOR_CONTROLS; commands go to PX4 over its offboard link. All waits are bounded, every process is ours and ends
with us, and north-east-down appears in this folder only.
"""

from .autopilot import Px4
from .plant import Px4Plant

__all__ = ["Px4", "Px4Plant"]
