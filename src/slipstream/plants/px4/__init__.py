"""The PX4 plant: the real autopilot, in lockstep, with MuJoCo vehicles.

The simulator listens and PX4 connects. Every HIL_SENSOR message advances PX4's clock by one step, and PX4 answers it
with HIL_ACTUATOR_CONTROLS; setpoints go to PX4 over its offboard link. Every wait has a timeout, every process is a
child that ends with us, and north-east-down occurs in this folder only.
"""

from .autopilot import Px4
from .plant import Px4Plant

__all__ = ["Px4", "Px4Plant"]
