"""What others use of the CPU, on Linux."""

import subprocess
import sys
import time

import pytest

from scripts.bench.cpu_watch import CpuWatch, busy_seconds, process_seconds

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells through /proc")
SPIN = [sys.executable, "-c", "print(flush=True)\nwhile True: pass"]


def test_our_own_work_is_not_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that spins counts as others' until it is named as ours: the difference is what it used."""
    with subprocess.Popen(SPIN, stdout=subprocess.PIPE) as spinner:
        try:
            assert spinner.stdout
            spinner.stdout.readline()
            alone, with_worker = CpuWatch(), CpuWatch([spinner.pid])
            before = process_seconds(spinner.pid)
            time.sleep(0.5)
            used = process_seconds(spinner.pid) - before
            theirs, ours = alone.others(), with_worker.others()
        finally:
            spinner.kill()
    assert used > 0.02
    assert theirs is not None
    assert ours is not None
    assert theirs - ours > 0.02
    assert process_seconds(spinner.pid) == 0


def test_own_work_and_that_of_children_is_counted() -> None:
    watch = CpuWatch()
    subprocess.run([sys.executable, "-c", "sum(range(10**7))"], check=True)
    sum(range(3 * 10**6))
    now = watch._now()
    assert now.own - watch._before.own > 0.05
    assert now.busy >= watch._before.busy > 0


def test_where_proc_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*args: object, **more: object) -> object:
        raise FileNotFoundError

    monkeypatch.setattr("builtins.open", missing)
    assert busy_seconds() == 0
    assert process_seconds(1) == 0
    assert CpuWatch().others() is None
