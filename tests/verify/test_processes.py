"""Work side by side: results in order, news as it comes, and no process left however it ends."""

import os
import signal
from multiprocessing import active_children, get_context

import pytest

from onceonly_verify.processes import Tell, WorkFailed, _work, cores, side_by_side
from onceonly_verify.trie import NotDeterministic


def double(number: int, tell: Tell) -> int:
    """Tell where it works, and double; 0 cannot be doubled."""
    tell(number, os.getpid())
    if not number:
        raise ValueError("nothing to double")
    return 2 * number


def wait_for_a_signal(number: int, tell: Tell) -> int:
    """Tell that it began, and never end by itself."""
    tell(number, os.getpid())
    signal.pause()
    return number


def die(number: int, tell: Tell) -> int:  # noqa: ARG001 - the shape of all work
    """End the process, as an operating system that is out of memory does."""
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def refuse(number: int, tell: Tell) -> int:  # noqa: ARG001 - the shape of all work
    """Raise an error of this library."""
    raise NotDeterministic("it looked at a clock")


@pytest.mark.parametrize("jobs", [0, 1, 3])
def test_results_come_in_the_order_of_the_tasks(jobs: int) -> None:
    """Whichever ends first; each task has a process of its own, which is not this one."""
    news: list[tuple[int, int]] = []
    ended: list[int] = []
    results = side_by_side(double, [3, 1, 2], jobs=jobs, told=lambda *each: news.append(each), done=ended.append)
    assert results == (6, 2, 4)
    assert sorted(ended) == [2, 4, 6]
    assert sorted(number for number, _ in news) == [1, 2, 3]
    assert len({process for _, process in news} - {os.getpid()}) == 3
    assert not active_children()


def test_without_a_number_there_is_one_process_for_each_core() -> None:
    """At least one."""
    assert cores() >= 1
    assert side_by_side(double, []) == ()


def test_work_that_raises_is_told_with_its_traceback() -> None:
    """A result that is missing is never mistaken for one."""
    with pytest.raises(WorkFailed, match="nothing to double"):
        side_by_side(double, [1, 0], jobs=2)
    assert not active_children()


def test_what_the_work_refuses_is_raised_as_it_is() -> None:
    """Words for people need no traceback of another process."""
    with pytest.raises(NotDeterministic, match=r"^it looked at a clock$"):
        side_by_side(refuse, [1], jobs=1)
    assert not active_children()


def test_work_whose_process_dies_is_an_error() -> None:
    """As when the memory is used up."""
    with pytest.raises(WorkFailed, match=f"exit code -{signal.SIGKILL.value}"):
        side_by_side(die, [1], jobs=1)
    assert not active_children()


def test_work_that_nobody_waits_for_any_more_ends_in_silence() -> None:
    """A parent that was interrupted, or is dead, is no error of the child."""
    spawned = get_context("spawn")
    mine, yours = spawned.Pipe()
    process = spawned.Process(target=_work, args=(yours, double, 1), daemon=True)
    mine.close()
    process.start()
    yours.close()
    process.join()
    assert process.exitcode == 0


def test_an_interruption_ends_all_processes() -> None:
    """Who presses Ctrl-C gets the prompt back, and the machine to himself."""
    processes: list[int] = []

    def interrupt(_number: int, process: int) -> None:
        processes.append(process)
        if len(processes) == 2:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        side_by_side(wait_for_a_signal, [1, 2, 3], jobs=2, told=interrupt)
    assert not active_children()
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_an_interruption_of_a_child_alone_is_left_to_the_parent() -> None:
    """The terminal interrupts the whole group; a child that ended by itself would look like one that died."""

    def interrupt(_number: int, process: int) -> None:
        os.kill(process, signal.SIGINT)
        os.kill(process, signal.SIGTERM)

    with pytest.raises(WorkFailed, match=f"exit code -{signal.SIGTERM.value}"):
        side_by_side(wait_for_a_signal, [1], jobs=1, told=interrupt)
