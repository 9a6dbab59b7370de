"""Throughput of this machine: simulation, cameras, policy, training, and memory."""
