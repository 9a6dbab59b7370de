"""Pictures of recorded moments by our camera, for tasks that say what there is to see."""

import base64
import io

import jax
import jax.numpy as jnp
import numpy as np
from markupsafe import Markup
from PIL import Image

from ..core.task import DrawnTask
from ..evaluation.episode import Episode
from ..sensors.camera import Camera

FINE = 2
"""Stills of the page are drawn this many times larger and scaled down."""
STILLS, STILL_WIDTH, STILL_HEIGHT = 4, 420, 315


class Pictures:
    """Draws moments of episodes, all of the same size by one compiled program."""

    def __init__(self, task: DrawnTask, width: int, height: int, fine: int = 1) -> None:
        self.size, camera = (width, height), Camera(width * fine, height * fine)
        self._render = jax.jit(lambda moment: camera.render(task.film_scene(moment), task.film_view(moment)).rgb)

    def draw(self, episode: Episode, step: int) -> Image.Image:
        """The moment after that many steps."""
        moment = {name: jnp.asarray(rows[step]) for name, rows in episode.trajectory.items()}
        image = Image.fromarray(np.asarray(self._render(moment)))
        return image if image.size == self.size else image.resize(self.size, Image.Resampling.BOX)


def stills(task: DrawnTask, episode: Episode) -> list[Markup]:
    """Moments of an episode, evenly spread from its start to its end."""
    pictures = Pictures(task, STILL_WIDTH, STILL_HEIGHT, FINE)
    found = []
    for step in np.linspace(0, episode.length - 1, STILLS).round().astype(int):
        buffer = io.BytesIO()
        pictures.draw(episode, int(step)).save(buffer, "JPEG", quality=88)
        data = base64.b64encode(buffer.getvalue()).decode()
        seconds = f"{step * episode.control_dt:.1f} s"
        found.append(
            Markup(
                '<figure style="margin:0"><img src="data:image/jpeg;base64,{}" alt="the robot after {}" '
                'style="width:100%;border-radius:6px"><figcaption>{}</figcaption></figure>'
            ).format(data, seconds, seconds)
        )
    return found
