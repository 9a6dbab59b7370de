"""How the camera scales with cameras, shapes and pixels: a table on standard output and a picture of it.

python benchmarks/render_scaling.py docs/render-scaling.svg
"""

import math
import sys
from pathlib import Path

from slipstream import bench
from slipstream.core import device
from slipstream.report import charts
from slipstream.sensors.camera import SIZES

DEFAULT_EPISODES = {"cameras": 32, "width": 80, "height": 80, "count": 32}
ROWS = {
    "cameras": [{"cameras": n} for n in (1, 4, 16, 32, 64, 256)],
    "shapes": [{"count": n} for n in (8, 16, 32, 64, 128)],
    "pixels": [{"width": c.width, "height": c.height} for c in SIZES.values()],
}


def main(target: Path) -> None:
    device.configure(1, pictures=True)
    print("| cameras | picture | shapes | Mpix/CPU-s | frames/s | compile, s | memory, MB |")
    print("|---|---|---|---|---|---|---|")
    plots = []
    for name, some in ROWS.items():
        xs, ys = [], []
        for change in some:
            wanted = DEFAULT_EPISODES | change
            got = bench.render(**wanted)
            rate = got["megapixels_per_cpu_second"]
            picture = f"{got['width']} x {got['height']}"
            print(
                f"| {got['cameras']} | {picture} | {got['shapes']} | {rate} | {got['frames_per_second']:,} "
                f"| {got['compile_seconds']} | {got['memory_mb']} |",
                flush=True,
            )
            x = {"cameras": wanted["cameras"], "shapes": wanted["count"]}.get(name, wanted["width"] * wanted["height"])
            xs.append(math.log2(x))
            ys.append(rate)
        plots.append(charts.lines({name: (xs, ys)}, f"{name}, as a power of two", "Mpix/CPU-s", (0.0, max(ys) * 1.15)))
    target.write_text(charts.beside(plots))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
