"""What to tell a person about an error."""

from ..plants.plant import PlantError
from ..runs.checkpoint import CheckpointError
from ..runs.run import RunError
from ..runs.train import TrainingError, lack_of_memory


def explain(error: Exception) -> tuple[str, int] | None:
    """What to tell a person about an error that they can put right, and the exit code: 2 if the request was wrong.

    None if the error is a bug of ours, which needs its traceback.
    """
    if isinstance(error, RunError | ValueError):
        return str(error), 2
    if isinstance(error, CheckpointError | TrainingError | PlantError):
        return str(error), 1
    text = lack_of_memory(error)
    return None if text is None else (text, 1)
