"""What must be set before the first compile: XLA's options, the compile cache, and cores as devices."""

import contextlib
import os
from pathlib import Path

import jax
import jaxlib.version
from jax.sharding import Mesh

XLA_CPU_OPTIONS = {
    "xla_cpu_use_multi_output_fusion": "true",
    "xla_cpu_small_while_loop_byte_threshold": "1000000000000000",
    # LLVM's own: a loop with many outputs stays scalar if it needs more overlap checks than this (by default 128).
    "-vectorize-memory-check-threshold": "100000",
}
# A loop over sixteen agents that is written out in full never becomes one of vectors. Cameras lose a third by this.
WITHOUT_IMAGES = {"-unroll-full-max-count": "15"}
WIDE_VECTORS = "--xla_cpu_prefer_vector_width=512"
"""XLA keeps to 256 bits even on CPUs that have 512; which programs gain by more is a task's `wide_vectors`."""
WIDE_VECTORS_KNOWN = (0, 10)
"""Release of jaxlib that has this option. Another one might end the process over an option it does not know."""
AXIS = "devices"


def configure(devices: int | None = None, images: bool = False, wide_vectors: bool = False) -> None:
    """Set up JAX for this machine, before anything runs; what the user has set stays, and the first call counts.

    `devices` is how many devices to make of the CPU: by default one for each core. `images` is whether cameras take
    most of the time. `wide_vectors` is whether the program gains by vectors of 512 bits, where the CPU has them.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    options = XLA_CPU_OPTIONS if images else XLA_CPU_OPTIONS | WITHOUT_IMAGES
    wanted = [f"{name}={value}" for name, value in options.items() if name not in flags]
    if wanted and "xla_backend_extra_options" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_backend_extra_options={','.join(wanted)}".strip()
    if wide_vectors and "xla_cpu_prefer_vector_width" not in flags and has_wide_vectors():
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {WIDE_VECTORS}".strip()
    if "xla_force_host_platform_device_count" not in flags:
        # Once JAX has run something its devices are what they are.
        with contextlib.suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", devices or cores())
    if jax.config.values["jax_compilation_cache_dir"] is None:
        jax.config.update("jax_compilation_cache_dir", str(cache_folder()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


def has_wide_vectors() -> bool:
    """Whether this CPU has AVX-512, and this jaxlib an option to use it."""
    if jaxlib.version.__version_info__[:2] != WIDE_VECTORS_KNOWN:
        return False
    with contextlib.suppress(OSError):
        return " avx512f " in Path("/proc/cpuinfo").read_text()
    return False


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cache_folder() -> Path:
    """Where compiled programs are kept between runs."""
    base = os.environ.get("SLIPSTREAM_CACHE") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "slipstream" / "compiled"


def mesh(devices: int | None = None) -> Mesh:
    """The devices training runs on, in one line."""
    have = jax.devices()
    if devices is not None and not 1 <= devices <= len(have):
        raise ValueError(f"{devices} devices were asked for, but this machine shows {len(have)}")
    return Mesh(have[: devices or len(have)], (AXIS,))


def free_memory() -> int | None:
    """Bytes that are free where training runs, on all devices together; None if nobody can tell."""
    told = [gpu.memory_stats() for gpu in jax.devices() if gpu.platform != "cpu"]
    if told:
        return sum(s["bytes_limit"] - s["bytes_in_use"] for s in told if s and "bytes_limit" in s) or None
    return host_memory()


def host_memory() -> int | None:
    """Bytes that are free on the host: of the machine, and of a container's share of it; None if nobody can tell."""
    found = []
    with contextlib.suppress(OSError):
        rows = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
        found += [int(row[1]) * 1024 for row in rows if row[0] == "MemAvailable:"]
    with contextlib.suppress(OSError, ValueError):  # a group without a limit says "max"
        group = Path("/sys/fs/cgroup")
        found.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    return min(found, default=None)
