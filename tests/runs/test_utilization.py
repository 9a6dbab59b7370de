import sys
import time
from types import SimpleNamespace

import pytest

from slipstream.runs.utilization import NAMES, Utilization, amd_reader, gpu_reader, nvidia_reader


def test_a_busy_process_uses_a_core_and_a_sleeping_one_none():
    found = Utilization()
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass
    busy = found.look()
    time.sleep(0.2)
    idle = found.look()
    assert busy["cores_used"] > 5.0 * idle["cores_used"]
    assert 0.01 < busy["memory_gb"] < 100.0
    assert set(busy) <= set(NAMES)


def test_a_gpu_is_read_by_the_library_of_its_maker(monkeypatch):
    nvidia = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUtilizationRates=lambda device: SimpleNamespace(gpu=37),
        nvmlDeviceGetMemoryInfo=lambda device: SimpleNamespace(used=3_000_000_000),
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvidia)
    assert nvidia_reader()() == {"gpu_utilization": 0.37, "gpu_memory_gb": 3.0}
    amd = SimpleNamespace(
        amdsmi_init=lambda: None,
        amdsmi_get_processor_handles=lambda: ["first"],
        amdsmi_get_gpu_activity=lambda device: {"gfx_activity": 80},
        amdsmi_get_gpu_vram_usage=lambda device: {"vram_used": 2000, "vram_total": 16000},
    )
    monkeypatch.setitem(sys.modules, "amdsmi", amd)
    assert amd_reader()() == {"gpu_utilization": 0.8, "gpu_memory_gb": pytest.approx(2.0)}
    monkeypatch.setitem(sys.modules, "pynvml", None)
    read = gpu_reader()
    assert read is not None and read()["gpu_utilization"] == 0.8
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    assert gpu_reader() is None
