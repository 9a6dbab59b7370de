"""What everything stands on: structs, geometry, random numbers, spaces, tasks, devices."""
