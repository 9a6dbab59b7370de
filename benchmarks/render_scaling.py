"""How the camera scales with cameras, shapes and pixels: a table on standard output and a chart.

python benchmarks/render_scaling.py docs/render-scaling.svg
"""

import math
import sys
from pathlib import Path

from slipstream import bench
from slipstream.core import device
from slipstream.reports import charts
from slipstream.sensors.camera import SIZES

DEFAULTS = {"cameras": 32, "width": 80, "height": 80, "count": 32}
ROWS = {
    "cameras": [{"cameras": n} for n in (1, 4, 16, 32, 64, 256)],
    "shapes": [{"count": n} for n in (8, 16, 32, 64, 128)],
    "pixels": [{"width": c.width, "height": c.height} for c in SIZES.values()],
}


def main(target: Path) -> None:
    device.configure(1, pictures=True)
    print("| cameras | image | shapes | Mpix/CPU-s | frames/s | compile, s | memory, MB |")
    print("|---|---|---|---|---|---|---|")
    plots = []
    for name, changes in ROWS.items():
        xs, ys = [], []
        for change in changes:
            setting = DEFAULTS | change
            result = bench.render(**setting)
            rate = result["megapixels_per_cpu_second"]
            image = f"{result['width']} x {result['height']}"
            print(
                f"| {result['cameras']} | {image} | {result['shapes']} | {rate} | {result['frames_per_second']:,} "
                f"| {result['compile_seconds']} | {result['memory_mb']} |",
                flush=True,
            )
            pixels = setting["width"] * setting["height"]
            x = {"cameras": setting["cameras"], "shapes": setting["count"], "pixels": pixels}[name]
            xs.append(math.log2(x))
            ys.append(rate)
        plots.append(charts.lines({name: (xs, ys)}, f"{name}, as a power of two", "Mpix/CPU-s", (0.0, max(ys) * 1.15)))
    target.write_text(charts.side_by_side(plots))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
