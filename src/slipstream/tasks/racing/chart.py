"""A race from above, as a chart for the page."""

import numpy as np

from ...reports.charts import INK, speed_color, svg


def track_map(gates: np.ndarray, paths: list[tuple[np.ndarray, np.ndarray]], outer: float) -> str:
    """Gates and flown paths from above, each path colored by its speed."""
    points = np.concatenate([gates[:, :2], *[p[:, :2] for p, _ in paths]])
    (x0, y0), (x1, y1) = points.min(axis=0) - 2.2, points.max(axis=0) + 2.2
    scale = 760 / max(x1 - x0, 1e-6)
    width, height = 760.0, (y1 - y0) * scale
    fastest = max((float(np.max(speed)) for _, speed in paths), default=0.0) or 1.0

    def at(x: float, y: float) -> str:
        return f"{(x - x0) * scale:.1f},{(y1 - y) * scale:.1f}"

    body = []
    for path, speed in paths:
        step = 3
        for i in range(0, len(path) - step, step):
            red, green, blue = speed_color(float(speed[i]) / fastest)
            body.append(
                f'<polyline points="{at(*path[i, :2])} {at(*path[i + step, :2])}" '
                f'stroke="rgb({red},{green},{blue})" stroke-width="1.6" stroke-opacity="0.75"/>'
            )
    for number, (x, y, z, cos, sin) in enumerate(gates, start=1):
        dx, dy = -sin * outer / 2, cos * outer / 2
        body.append(f'<polyline points="{at(x - dx, y - dy)} {at(x + dx, y + dy)}" stroke="{INK}" stroke-width="5"/>')
        body.append(f'<polyline points="{at(x, y)} {at(x + cos, y + sin)}" stroke="{INK}" stroke-width="2"/>')
        tip = " ".join(at(x + a * cos - b * sin, y + a * sin + b * cos) for a, b in ((1.2, 0), (0.8, 0.2), (0.8, -0.2)))
        body.append(f'<polygon points="{tip}" fill="{INK}"/>')
        # To the left of the gate, with a white outline over the paths.
        tx, ty = at(x - sin * (outer / 2 + 0.55), y + cos * (outer / 2 + 0.55)).split(",")
        side = "end" if sin > 0.5 else "" if sin < -0.5 else "mid"
        body.append(
            f'<text x="{tx}" y="{ty}" dy="4" class="name {side}" paint-order="stroke" stroke="#fff" stroke-width="4">'
            f"{number} ({z:.1f} m)</text>"
        )
    for i in range(60):
        red, green, blue = speed_color(i / 59)
        body.append(
            f'<rect x="{10 + 2 * i}" y="{height - 18:.1f}" width="2.2" height="8" fill="rgb({red},{green},{blue})"/>'
        )
    body.append(f'<text x="136" y="{height - 10:.1f}" class="tick">0 to {fastest:.1f} m/s</text>')
    return svg("".join(body), width, height)
