"""slipstream train: train a preset or a task, with a live progress bar."""

from ..pipeline.training import train_run
from .options import emit
from .training import format_training, training_request, training_result


def run(words: list[str]) -> int:
    trained, options = training_request(words, "train")
    result = training_result(trained, train_run(trained, options.resume))
    emit(result, options.json, lambda: format_training(result, trained.experiment.task))
    return 0
