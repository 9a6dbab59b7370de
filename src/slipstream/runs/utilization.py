"""How busy the machine is while it trains: cores and memory of this process, and of a GPU what its own library says."""

import contextlib
import importlib
import time
from collections.abc import Callable
from typing import Any

import jax
import psutil

NAMES = ("cores_used", "memory_gb", "gpu_utilization", "gpu_memory_gb")
"""What a line of metrics may say about it."""


class Utilization:
    """Cores and memory in use between two looks."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._gpu = gpu_reader() if jax.default_backend() in ("gpu", "cuda", "rocm") else None
        self._last = time.perf_counter(), time.process_time()

    def look(self) -> dict[str, float]:
        """Since the last look: cores that were busy on average; now: memory, and how busy the GPU is."""
        now = time.perf_counter(), time.process_time()
        wall, cpu = (b - a for a, b in zip(self._last, now, strict=True))
        self._last = now
        found = {"cores_used": round(cpu / max(wall, 1e-9), 3), "memory_gb": self._process.memory_info().rss / 1e9}
        return found if self._gpu is None else found | self._gpu()


def gpu_reader() -> Callable[[], dict[str, float]] | None:
    """A function that reads the first GPU, by NVIDIA's or AMD's management library; None if neither is installed."""
    for make in (nvidia_reader, amd_reader):
        # The library may be missing, or installed without a driver.
        with contextlib.suppress(Exception):
            return make()
    return None


def nvidia_reader() -> Callable[[], dict[str, float]]:
    """By `nvidia-ml-py`."""
    nvml: Any = importlib.import_module("pynvml")
    nvml.nvmlInit()
    device = nvml.nvmlDeviceGetHandleByIndex(0)

    def read() -> dict[str, float]:
        busy, memory = nvml.nvmlDeviceGetUtilizationRates(device), nvml.nvmlDeviceGetMemoryInfo(device)
        return {"gpu_utilization": busy.gpu / 100.0, "gpu_memory_gb": memory.used / 1e9}

    return read


def amd_reader() -> Callable[[], dict[str, float]]:
    """By `amdsmi`."""
    smi: Any = importlib.import_module("amdsmi")
    smi.amdsmi_init()
    device = smi.amdsmi_get_processor_handles()[0]

    def read() -> dict[str, float]:
        busy, memory = smi.amdsmi_get_gpu_activity(device), smi.amdsmi_get_gpu_vram_usage(device)
        return {"gpu_utilization": busy["gfx_activity"] / 100.0, "gpu_memory_gb": memory["vram_used"] / 1e3}

    return read
