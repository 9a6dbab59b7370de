"""Throughput of this machine: worlds alone, cameras alone, with a policy, with learning, and what a world needs of memory."""
