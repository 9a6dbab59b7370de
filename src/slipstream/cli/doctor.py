"""slipstream doctor: what is installed and what is missing."""

from ..core import device
from .options import JsonOption, emit, parse


def run(words: list[str]) -> int:
    options = parse(JsonOption, words, "doctor")
    device.configure()
    from ..doctor import examine

    findings = examine()
    emit({"findings": findings}, options.json, lambda: "\n".join(finding["text"] for finding in findings))
    return 0 if all(finding["good"] or not finding["needed"] for finding in findings) else 1
