"""How a world of the lift looks to MuJoCo's renderer: textures, lights and shadows that no training has.

Camera poses, clutter and the tint of each material are those that our camera draws of the same world.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from .looks import CAMERAS, CLUTTER, MATERIALS, CameraPose
from .mjcf import Appearance, numbers
from .scene import TARGET_SIZE
from .state import CameraError, LiftState, Looks

SHADOWS, SAMPLES = 1024, 4
"""Edge of the shadow map, and samples of each pixel."""


def appearance(state: LiftState, size: int) -> Appearance:
    """How a world looks, in images of that edge; its numbers are on the host."""
    rng = np.random.default_rng(int(state.rng.stream))
    looks: Looks | None = state.world.looks
    names = list(MATERIALS)
    colors = {name: np.array([float(part) for part in MATERIALS[name].parts]) for name in names}
    cameras, clutter = dict(CAMERAS), [(x, y, half) for x, y, half in CLUTTER]
    if looks is not None:
        for name, tint in zip(names, looks.colors, strict=True):
            colors[name] = np.clip(colors[name] + [float(part) for part in tint.parts], 0.02, 1.0)
        cameras = {
            name: displaced(pose, error) for (name, pose), error in zip(CAMERAS.items(), looks.cameras, strict=True)
        }
        clutter = [tuple(float(part) for part in place.parts) for place in looks.clutter]
    objects = "".join(
        f'<geom class="look" type="box" pos="{numbers(place)}" size="{numbers([half] * 3)}" material="clutter"/>'
        for place, (_, _, half) in zip(clutter, CLUTTER, strict=True)
    )
    if state.world.target is not None:
        at = float(state.world.target.x), float(state.world.target.y), 0.0
        size_of = numbers(TARGET_SIZE)
        objects += f'<geom class="look" type="box" pos="{numbers(at)}" size="{size_of}" material="target"/>'
    return Appearance(
        visual=(
            f'<global offwidth="{size}" offheight="{size}"/><quality shadowsize="{SHADOWS}" offsamples="{SAMPLES}"/>'
            f'<headlight ambient="{numbers([rng.uniform(0.2, 0.4)] * 3)}" diffuse="0.1 0.1 0.1" specular="0 0 0"/>'
            '<map znear="0.01" zfar="30"/>'
        ),
        assets=assets(rng, colors),
        lights=lights(rng),
        paint=lambda material: f'material="{material}"',
        cameras=cameras,
        objects=objects,
    )


def assets(rng: np.random.Generator, colors: dict[str, Any]) -> str:
    """A sky, and a texture and a gloss for each material: two shades of its color, and specks of another."""
    sky = rng.uniform(0.3, 0.9, 3)
    found = [
        f'<texture name="sky" type="skybox" builtin="gradient" width="64" height="64" rgb1="{numbers(sky)}" '
        f'rgb2="{numbers(0.5 * sky)}"/>'
    ]
    for name, color in colors.items():
        other = np.clip(color * rng.uniform(0.6, 1.3) + rng.uniform(-0.05, 0.05, 3), 0.0, 1.0)
        specks = np.clip(color + rng.uniform(-0.3, 0.3, 3), 0.0, 1.0)
        pattern = rng.choice(["checker", "gradient", "flat"])
        flat = name in ("mat", "other tiles")
        repeat = f'texrepeat="{numbers(rng.uniform(4, 16, 2))}" texuniform="true"' if flat else ""
        found.append(
            f'<texture name="{name}" type="{"2d" if flat else "cube"}" builtin="{pattern}" width="64" '
            f'height="{64 if flat else 384}" rgb1="{numbers(color)}" rgb2="{numbers(other)}" mark="random" '
            f'markrgb="{numbers(specks)}" random="{rng.uniform(0.0, 0.1):.3g}"/>'
            f'<material name="{name}" texture="{name}" {repeat} specular="{rng.uniform(0.0, 0.8):.3g}" '
            f'shininess="{rng.uniform(0.0, 0.8):.3g}" reflectance="{0.15 * rng.uniform() if flat else 0.0:.3g}"/>'
        )
    return "".join(found)


def lights(rng: np.random.Generator) -> str:
    """A lamp that casts shadows, and a weaker one from elsewhere that casts none."""
    found = ""
    for strength, shadow in ((rng.uniform(0.4, 0.7), "true"), (rng.uniform(0.0, 0.25), "false")):
        angle, height = rng.uniform(-np.pi, np.pi), rng.uniform(0.6, 1.2)
        place = np.array([0.2 + 0.6 * np.cos(angle), 0.6 * np.sin(angle), height])
        ahead = np.array([0.2, 0.0, 0.0]) - place
        tint = np.clip(strength * rng.uniform(0.85, 1.15, 3), 0.0, 1.0)
        found += (
            f'<light pos="{numbers(place)}" dir="{numbers(ahead)}" directional="true" castshadow="{shadow}" '
            f'diffuse="{numbers(tint)}" specular="{numbers(0.5 * tint)}"/>'
        )
    return found


def displaced(pose: CameraPose, error: CameraError) -> CameraPose:
    """A camera that is not quite where it should be."""
    ahead, up = np.array(pose.ahead), np.array(pose.up)
    frame = np.stack([ahead, np.cross(up, ahead), up], -1)
    q = np.array([1.0, *(0.5 * float(part) for part in error.angle.parts)])
    w, x, y, z = q / np.linalg.norm(q)
    turn = np.array([
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ])  # fmt: skip
    turned = frame @ turn
    x, y, z = (a + float(b) for a, b in zip(pose.position, error.position.parts, strict=True))
    return replace(
        pose,
        position=(x, y, z),
        ahead=tuple(turned[:, 0]),
        up=tuple(turned[:, 2]),
        field_of_view=pose.field_of_view * float(error.field_of_view),
    )
