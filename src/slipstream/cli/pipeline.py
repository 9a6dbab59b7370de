"""slipstream pipeline: train, evaluate, film and report in one go."""

import time

from ..pipeline.stages import run_all
from .options import emit
from .training import format_summary, format_training, training_request, training_result


def run(words: list[str]) -> int:
    began = time.perf_counter()
    trained, options = training_request(words, "pipeline")
    done = run_all(trained, options.resume)
    if done is None:
        return 1
    training = training_result(trained, done.training)
    result = {
        "run": str(trained.folder),
        "training": training,
        "evaluation": done.evaluation,
        "video": str(done.video),
        "report": str(done.report),
        "seconds": round(time.perf_counter() - began, 1),
    }

    def text() -> str:
        return "\n".join(
            [
                f"Report:   {done.report.resolve()}",
                f"Trained:  {format_training(training, trained.experiment.task)}",
                f"Achieved: {format_summary(done.evaluation)}",
            ]
        )

    emit(result, options.json, text)
    return 0
