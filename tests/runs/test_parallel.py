"""Several runs at once: each has its own core and its own words, and one that fails does not stop the others."""

import os
from pathlib import Path

import pytest

from slipstream.runs.parallel import LOG, run_parallel, steps_of


def worked(folder: Path) -> int:
    print("cores", sorted(os.sched_getaffinity(0)))
    (folder / "metrics.jsonl").write_text('{"step": 7}\n')
    if folder.name == "bad":
        raise ValueError("this one cannot be done")
    return 0


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="cores cannot be chosen here")
def test_runs_beside_each_other_share_the_cores_and_not_their_fate(tmp_path, capfd):
    folders = [tmp_path / name for name in ("one", "bad", "two")]
    for folder in folders:
        folder.mkdir()
    seen = []
    failed = run_parallel(folders, worked, 2, lambda done, active: seen.append((done, len(active))))
    assert failed == [tmp_path / "bad"]
    assert seen[-1] == (3, 0) and max(active for _, active in seen) <= 2
    assert [steps_of(folder) for folder in folders] == [7, 7, 7]
    logs = [(folder / LOG).read_text() for folder in folders]
    assert "cannot be done" in logs[1] and "cannot be done" not in capfd.readouterr().err
    mine = sorted(os.sched_getaffinity(0))
    if len(mine) > 1:
        half = len(mine) // 2
        assert {logs[0].strip(), logs[1].splitlines()[0]} == {f"cores {mine[:half]}", f"cores {mine[half : 2 * half]}"}
