"""A lock dies with its process, and proves nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.support import ManualClock

from forbear.rules.ports import Moment
from forbear.storage.liveness import Liveness, SharedLiveness


def test_a_process_lives_from_its_claim_to_its_release(tmp_path: Path) -> None:
    mine, other = Liveness(tmp_path, "own_a"), Liveness(tmp_path, "own_b")
    assert not mine.alive("own_a")
    assert not other.alive("own_a")
    mine.claim()
    assert mine.alive("own_a")
    assert other.alive("own_a")
    mine.claim()
    mine.release()
    assert not mine.alive("own_a")
    assert not other.alive("own_a")
    assert list(tmp_path.iterdir()) == []
    mine.release()


@pytest.mark.requirement("D02")
def test_a_killed_process_is_dead_at_once_and_swept(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from forbear.storage.liveness import Liveness\n"
        "Liveness(Path(sys.argv[1]), 'own_b').claim(); print('here', flush=True); input()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    watcher = Liveness(tmp_path, "own_a")
    watcher.claim()
    assert watcher.alive("own_b")
    assert watcher.sweep() == 0
    process.kill()
    process.communicate()
    assert not watcher.alive("own_b")
    assert watcher.sweep() == 1
    assert [path.name for path in tmp_path.iterdir()] == ["own_a"]
    watcher.release()


@pytest.mark.requirement("D02")
def test_a_file_that_cannot_be_asked_proves_nobody_dead(tmp_path: Path) -> None:
    watcher = Liveness(tmp_path, "own_a")
    (tmp_path / "own_b").mkdir()
    assert watcher.alive("own_b")
    assert watcher.sweep() == 0


@pytest.mark.requirement("D02")
def test_no_sweep_takes_the_file_of_a_process_that_is_just_starting(tmp_path: Path) -> None:
    """A sweep that unlinks after it let go of the lock would bury the living."""
    ended = threading.Event()
    buried: list[str] = []

    def sweep_on() -> None:
        watcher = Liveness(tmp_path, "own_watcher")
        while not ended.is_set():
            watcher.sweep()

    sweepers = [threading.Thread(target=sweep_on) for _ in range(3)]
    for sweeper in sweepers:
        sweeper.start()
    for number in range(300):
        one = Liveness(tmp_path, f"own_{number}")
        one.claim()
        if not Liveness(tmp_path, "own_asks").alive(one.owner):
            buried.append(one.owner)
        one.release()
    ended.set()
    for sweeper in sweepers:
        sweeper.join()
    assert buried == []


@pytest.mark.requirement("D07")
def test_a_file_of_an_earlier_boot_shows_nobody_that_lives_and_proves_nobody_dead(
    tmp_path: Path,
) -> None:
    before = Moment(0, 0, "before")
    gone = SharedLiveness(tmp_path, "own_a", ManualClock(before))
    gone.claim()
    assert SharedLiveness(tmp_path, "own_b", ManualClock(before)).others() == {"own_a"}
    gone.release()
    later = SharedLiveness(tmp_path, "own_b", ManualClock(Moment(0, 0, "later")))
    assert later.others() == set()
    assert later.alive("own_a")


@pytest.mark.requirement("D02")
def test_a_dead_file_that_cannot_be_removed_is_dead_and_no_news_to_every_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep that found it anew each time would have the store written several times a second."""
    (tmp_path / "own_dead").touch()
    watcher = Liveness(tmp_path, "own_watcher")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as broken:
        broken.setattr(Path, "unlink", refuse)
        assert watcher.sweep() == 0
        assert not watcher.alive("own_dead")
    assert watcher.sweep() == 1
    assert not (tmp_path / "own_dead").exists()
