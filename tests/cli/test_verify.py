"""`onceonly verify`: what it prints and how it ends, for findings good and bad; the findings are tested elsewhere."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

from onceonly.cli.output import SETUP
from onceonly_verify import CHECKS, MUTANTS, CheckResult, MutantResult, command, output, run_check
from onceonly_verify.checks.larger import DEEP
from onceonly_verify.command import INTERRUPTED
from onceonly_verify.explorer import ExploredStep
from onceonly_verify.generated import suite
from onceonly_verify.generated.reach import CheckReach, Reach
from onceonly_verify.generated.suite import GeneratedFindings, ModuleFigures, Survivor
from onceonly_verify.histories import Counterexample, TraceStep
from onceonly_verify.processes import cores
from onceonly_verify.runs import LIMIT
from onceonly_verify.schedules import WalkResult
from onceonly_verify.trie import NotDeterministic
from tests.cli.terminal import Terminal

STEPS = (
    ExploredStep("the world", "deliver a", "to A"),
    ExploredStep("worker A", "commit", "applied"),
    ExploredStep("worker A", "crash", "dead"),
)
WORLD = {
    "algorithm": "one message",
    "bound": "two copies",
    "states": 1200,
    "transitions": 3400,
    "seconds": 0.5,
    "megabytes": 30,
}
FINE = CheckResult(**WORLD, complete=True)
VIOLATED = CheckResult(**WORLD, complete=False, violation="a was handled twice", steps=STEPS)
STUCK = CheckResult(**WORLD, complete=True, stuck=2, steps=STEPS)
CUT_OFF = CheckResult(**WORLD, complete=False)
INCAPABLE = CheckResult(**WORLD, complete=True, missing=("commit: crash before",))
CAUGHT = MutantResult(name="ack before processing", caught=True, violation="a was lost", states=7, steps=STEPS)
SURVIVED = MutantResult(name="nothing changed", caught=False, states=9)
SURVIVOR = Survivor(name="generated: a", words="drops a call", known="no world has two")
GENERATED = GeneratedFindings(
    seed=0,
    sampled=True,
    modules={"relay": ModuleFigures(total=29, run=2, caught=1, equivalent=3, survivors=1)},
    survivors=(SURVIVOR,),
)
FIGURES = {"total": 29, "run": 2, "caught": 1, "equivalent": 3, "percent": 50.0}
ACKED_EARLY = "ack before processing"
SMALL = "given up with its effects pending"


def let_the_checker_find(
    monkeypatch: pytest.MonkeyPatch,
    checked: CheckResult,
    hunted: MutantResult,
    *,
    at_once: int = 0,
    generated: GeneratedFindings = GENERATED,
) -> None:
    """Let there be one check and one mutant, with these results, for whoever asks for so many processes."""

    def checks(chosen: object, *, jobs: int, progress: Any, done: Any, limit: int) -> tuple[CheckResult, ...]:
        assert (chosen, jobs) == (CHECKS, at_once)
        assert limit in {5, LIMIT}
        progress("one message", 5, 5)
        done(checked)
        return (checked,)

    def mutants(chosen: object, *, jobs: int, done: Any, shortest: bool) -> tuple[MutantResult, ...]:
        assert (chosen, jobs, shortest) == (MUTANTS, at_once, False)
        done(hunted)
        return (hunted,)

    monkeypatch.setattr(command, "run_checks", checks)
    monkeypatch.setattr(command, "run_mutants", mutants)
    let_the_generator_find(monkeypatch, generated)


def let_the_generator_find(monkeypatch: pytest.MonkeyPatch, generated: GeneratedFindings) -> None:
    """Let the generated mutants come to this, whichever are chosen."""
    monkeypatch.setattr(command, "reach_of", lambda *_, **__: Reach(()))
    monkeypatch.setattr(command, "tasks_of", lambda *_: [])
    monkeypatch.setattr(command, "summed_up", lambda *_: generated)


def let_the_depths_hold(monkeypatch: pytest.MonkeyPatch, explored: Sequence[CheckResult], walked: WalkResult) -> None:
    """Let the deep checks and the random schedules come to this."""

    def deep(_budget: object, chosen: object, *, done: Any, **_rest: Any) -> tuple[CheckResult, ...]:
        assert chosen is DEEP
        for each in explored:
            done(each)
        return tuple(explored)

    def walk(wanted: int, *, seed: int, tick: Any, **_rest: Any) -> WalkResult:
        assert (wanted, seed) == (walked.wanted, walked.seed)
        tick(walked)
        return walked

    monkeypatch.setattr(command, "run_deep", deep)
    monkeypatch.setattr(command, "walk_in_processes", walk)


def test_the_answer_has_every_check_and_every_mutant(onceonly: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """All well: exit code 0, as JSON of exactly this shape, and as tables with a summary."""
    let_the_checker_find(monkeypatch, FINE, CAUGHT)
    done = onceonly("verify", "--json")
    assert (done.code, done.err) == (0, "")
    assert done.answer == {
        "checks": [WORLD | {"complete": True, "violations": 0, "stuck": 0, "violation": "", "missing": []}],
        "mutants": [{"name": "ack before processing", "caught": True, "violation": "a was lost", "steps": 3, "states": 7}],
        "generated": {
            **FIGURES,
            "sampled": True,
            "seed": 0,
            "survivors": [{"name": "generated: a", "does": "drops a call", "known": "no world has two"}],
            "modules": {"relay": {**FIGURES, "survivors": 1}},
        },
    }
    tables = onceonly("verify")
    assert tables.code == 0
    assert "two copies" in tables.out
    assert "ack before processing" in tables.out
    assert tables.out.splitlines()[-1].startswith(
        "1 check complete, 1,200 states, 0 violations, 0 stuck; 1 of 1 mutant caught; "
    )


def test_an_unknown_survivor_among_generated_mutants_fails(onceonly: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named on standard error. `--generated` runs nothing else."""
    let_the_generator_find(monkeypatch, GENERATED)
    fine = onceonly("verify", "--generated")
    assert fine.code == 0
    assert "Known survivors" in fine.out
    assert "checks" not in fine.out
    unknown = GeneratedFindings(seed=0, sampled=False, modules=GENERATED.modules, survivors=(replace(SURVIVOR, known=""),))
    let_the_generator_find(monkeypatch, unknown)
    done = onceonly("verify", "--generated", "--json")
    assert done.code == 1
    assert done.answer["generated"]["survivors"][0]["known"] is None
    assert done.err == "error: mutants not caught: generated: a\n"


def test_without_a_terminal_progress_is_plain_lines(onceonly: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log has a line for each thing that is done, and no control characters anywhere."""
    let_the_checker_find(monkeypatch, FINE, CAUGHT)
    done = onceonly("verify")
    assert done.err == ("one message: 1,200 states in 0.5 s, complete\nmutant ack before processing: caught after 3 steps\n")
    assert all(character.isprintable() or character == "\n" for character in done.out + done.err)


def test_in_a_narrow_terminal_nothing_is_cut(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """80 columns: every word of the name and of the bound, and every number on one line."""
    monkeypatch.setattr(output, "answers", lambda: Console(width=80, highlight=False))
    wide = CheckResult(
        algorithm="a handler that fails: retry, then dead letter",
        bound="2 copies of 1 message, 2 workers, batches of 1, 1 crash, 1 early lease expiry, 1 failed call",
        states=1_927_008,
        transitions=2_260_476,
        seconds=1234.5,
        megabytes=12_345,
        complete=True,
    )
    output.show_checks("Explored", [wide])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    words = " ".join(lines)
    assert all(word in words.split() for word in (*wide.algorithm.split(), *wide.bound.split()))
    assert any(all(number in line for number in ("1,927,008", "2,260,476", "1234.5", "12,345", "yes")) for line in lines)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (VIOLATED, "=> a was handled twice"),
        (STUCK, "no final state can be reached"),
        (CUT_OFF, "0 of 1 check complete"),
        (INCAPABLE, "never happened: commit: crash before"),
    ],
)
def test_a_finding_ends_with_exit_code_1_and_says_what_it_is(
    onceonly: Terminal, monkeypatch: pytest.MonkeyPatch, found: CheckResult, words: str
) -> None:
    """A violation, a stuck state and a search that did not see everything are all no; a counterexample is saved."""
    let_the_checker_find(monkeypatch, found, CAUGHT)
    done = onceonly("verify", "--no-mutants")
    assert done.code == 1
    assert "checks failed: one message" in done.error
    assert words in done.out
    assert ("  2. worker A: commit: applied\n" in done.out) == bool(found.steps)
    saved = onceonly.folder / "counterexample-one-message.json"
    assert saved.exists() == bool(found.steps)
    assert ("onceonly verify --replay counterexample-one-message.json" in done.err) == bool(found.steps)
    assert onceonly("verify", "--no-mutants", "--json").answer["mutants"] == []


@pytest.mark.parametrize(("found", "code"), [(CUT_OFF, 0), (FINE, 0), (VIOLATED, 1), (STUCK, 1), (INCAPABLE, 1)])
def test_with_a_limit_of_states_a_check_may_stay_incomplete(
    onceonly: Terminal, monkeypatch: pytest.MonkeyPatch, found: CheckResult, code: int
) -> None:
    """What was seen of it counts."""
    let_the_checker_find(monkeypatch, found, CAUGHT)
    done = onceonly("verify", "--no-mutants", "--check-states", "5")
    assert done.code == code
    assert f"{found.complete:d}{'' if found.complete else ' of 1'} check complete" in done.out


def test_the_limit_of_states_is_kept(onceonly: Terminal) -> None:
    """Control: the same check is complete without it."""
    limited = onceonly("verify", "--check", "one message", "--check-states", "5", "--json").answer["checks"][0]
    whole = onceonly("verify", "--check", "one message", "--json").answer["checks"][0]
    assert (limited["complete"], whole["complete"]) == (False, True)
    assert limited["states"] < whole["states"]


def test_a_counterexample_that_cannot_be_saved_hides_nothing(onceonly: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """The finding is told first."""
    let_the_checker_find(monkeypatch, VIOLATED, CAUGHT)
    done = onceonly("verify", "--no-mutants", "--save", "no/such/folder/found.json")
    assert done.code == 1
    assert "cannot save the counterexample to no/such/folder/found.json" in done.err
    assert "=> a was handled twice" in done.out


def test_a_mutant_that_survives_is_a_no(onceonly: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checker that does not see a broken program proves nothing."""
    let_the_checker_find(monkeypatch, FINE, SURVIVED)
    done = onceonly("verify", "--json")
    assert done.code == 1
    assert "mutants not caught: nothing changed" in done.error
    assert not done.answer["mutants"][0]["caught"]


def test_ctrl_c_tells_what_was_done_so_far(onceonly: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """One check is done, the next is interrupted."""

    def checks(_chosen: object, *, done: Any, **_rest: Any) -> tuple[CheckResult, ...]:
        done(FINE)
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run_checks", checks)
    done = onceonly("verify")
    assert done.code == 130
    assert "1 check complete, 1,200 states" in done.out
    assert "interrupted" in done.error


def test_one_mutant_is_shown_saved_and_replayed(onceonly: Terminal) -> None:
    """The way of a sceptic: 1 is the exit code of a violation that happened again."""
    shown = onceonly("verify", "--mutant", ACKED_EARLY, "--save", "found.json")
    assert shown.code == 0
    steps = [line for line in shown.out.splitlines() if line[:4].strip().rstrip(".").isdigit()]
    assert steps[1] == "  2. worker A: ack delivery 1.1: applied"
    replayed = onceonly("verify", "--replay", "found.json")
    assert replayed.code == 1
    assert [line for line in replayed.out.splitlines() if line in steps] == steps
    assert "=> lost: 'a' is neither handled nor a dead letter" in replayed.out
    assert "Reproduced in 3 steps." in replayed.out
    answer = onceonly("verify", "--replay", "found.json", "--json").answer
    assert (answer["reproduced"], len(answer["steps"])) == (True, 3)


def test_one_generated_mutant_is_shown_saved_and_replayed(onceonly: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name, as one that is written by hand. Here one check reaches it."""
    lines = frozenset(("algorithms.outbox", number) for number in range(500))
    reach = Reach((CheckReach(check=SMALL, lines=lines, states=1, complete=True),))
    monkeypatch.setattr(suite, "reach_of", lambda _plan, **_: reach)
    name = "generated: algorithms.outbox.finish: drop _forget_and_ack #1"
    shown = onceonly("verify", "--mutant", name, "--save", "found.json")
    assert shown.code == 0, shown.error
    assert f"Counterexample in check {SMALL!r}:" in shown.out
    again = onceonly("verify", "--replay", "found.json")
    assert again.code == 1
    assert "Reproduced in" in again.out
    assert onceonly("verify", "--mutant", "generated: nobody").code == 2


@pytest.mark.parametrize(
    ("mutant", "words"), [(ACKED_EARLY, "step 2 should be"), ("no version check", "all 4 steps ran as saved")]
)
def test_a_replay_of_the_shipping_code_is_not_reproduced(onceonly: Terminal, mutant: str, words: str) -> None:
    """The same history without the mutant: exit code 3, and why."""
    onceonly("verify", "--mutant", mutant, "--save", "found.json")
    file = onceonly.folder / "found.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"mutant": ""}))
    done = onceonly("verify", "--replay", "found.json")
    assert done.code == 3
    assert "not reproduced" in done.error
    assert words in done.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--mutant", "nobody"), "unknown check or mutant 'nobody'"),
        (("--check", "nothing"), "unknown check or mutant 'nothing'"),
        (("--replay", "nowhere.json"), "nowhere.json"),
        (("--replay", "shop.py"), "shop.py is not a counterexample"),
    ],
)
def test_what_is_not_there_is_refused(onceonly: Terminal, arguments: tuple[str, ...], words: str) -> None:
    """Exit code 2: a person has to change something first."""
    done = onceonly("verify", *arguments)
    assert done.code == 2
    assert words in done.error


def test_one_check_runs_alone(onceonly: Terminal) -> None:
    """Without the mutants, and as far as it goes by itself."""
    alone = next(check for check in CHECKS if check.name == "a handler that fails, and nothing else does")
    answer = onceonly("verify", "--check", alone.name, "--json").answer
    found = [(check["algorithm"], check["states"], check["complete"]) for check in answer["checks"]]
    assert found == [(alone.name, run_check(alone).states, True)]
    assert answer["mutants"] == []


def test_somebody_else_may_need_a_core(onceonly: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--jobs` says how many processes work at once, on checks, mutants and schedules."""
    asked: list[int] = []

    def walk(wanted: int, *, seed: int, processes: int, **_rest: Any) -> WalkResult:
        asked.append(processes)
        return WalkResult(seed=seed, schedules=wanted, steps=1, seconds=1.0, wanted=wanted)

    let_the_checker_find(monkeypatch, FINE, CAUGHT, at_once=3)
    monkeypatch.setattr(command, "walk_in_processes", walk)
    assert onceonly("verify", "--jobs", "3").code == 0
    assert onceonly("verify", "--schedules", "10", "--jobs", "3").code == 0
    assert onceonly("verify", "--schedules", "10").code == 0
    assert asked == [3, cores()]


def test_an_interrupted_run_of_schedules_names_the_command_that_continues_it(
    onceonly: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For people and for programs. What was walked is a gapless row, so the rest is one as well."""

    def walk(wanted: int, *, seed: int, first: int, **_rest: Any) -> WalkResult:
        return WalkResult(seed=seed, first=first, schedules=20, steps=900, seconds=1.0, wanted=wanted - first)

    monkeypatch.setattr(command, "walk_in_processes", walk)
    done = onceonly("verify", "--schedules", "50", "--first", "100", "--seed", "4")
    assert done.code == INTERRUPTED
    assert done.out.startswith("20 of 50 random schedules (seed 4, from number 100), ")
    rest = "onceonly verify --schedules 30 --first 120 --seed 4"
    assert f"To continue: {rest}\n" in done.out
    told = onceonly("verify", "--schedules", "50", "--first", "100", "--seed", "4", "--json").answer["schedules"]
    assert (told["first"], told["schedules"], told["continue"]) == (100, 20, rest)


def test_a_run_of_schedules_begins_where_it_is_told_to(onceonly: Terminal) -> None:
    """The schedules of two runs are those of one."""

    def steps(*options: str) -> int:
        answer = onceonly("verify", *options, "--json").answer["schedules"]
        assert answer["continue"] is None
        return int(answer["steps"])

    assert steps("--schedules", "4") + steps("--schedules", "3", "--first", "4") == steps("--schedules", "7")


def test_a_first_schedule_without_schedules_is_refused(onceonly: Terminal) -> None:
    """Nothing would be walked."""
    done = onceonly("verify", "--first", "5")
    assert done.code == SETUP
    assert "--first 5 has no effect without --schedules" in done.error


def test_results_are_told_in_the_order_of_the_checks(onceonly: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever process ends first."""
    second = replace(FINE, algorithm="the second")

    def checks(*_: object, done: Any, **_rest: Any) -> tuple[CheckResult, ...]:
        done(second)
        done(FINE)
        return (FINE, second)

    monkeypatch.setattr(command, "run_checks", checks)
    answer = onceonly("verify", "--no-mutants", "--json").answer
    assert [check["algorithm"] for check in answer["checks"]] == ["one message", "the second"]


def test_everything_has_a_name(onceonly: Terminal) -> None:
    """Checks, deep checks, worlds of random schedules and mutants, for people and for programs."""
    answer = onceonly("verify", "--list", "--json").answer
    assert [len(answer[kind]) for kind in ("checks", "deep", "mutants")] == [len(CHECKS), len(DEEP), len(MUTANTS)]
    listed = onceonly("verify", "--list").out
    assert all(each["name"] in listed for kind in answer.values() for each in kind)
    (dropped,) = [each for each in answer["mutants"] if each["name"] == "no tombstone"]
    assert dropped == {
        "name": "no tombstone",
        "does": "drops the call to `attempts.bury` in `check_transaction`",
        "checks": ["a control message"],
    }
    assert "* no tombstone: drops the call to `attempts.bury` in `check_transaction` (a control message)\n" in listed


def test_random_schedules_alone_run_nothing_else(onceonly: Terminal) -> None:
    """They say how many, which seed, and how fast."""
    done = onceonly("verify", "--schedules", "10", "--seed", "4")
    assert done.code == 0
    assert done.out.startswith("10 random schedules (seed 4), ")
    assert "schedules/s" in done.out
    assert onceonly("verify", "--schedules", "10", "--json").answer["schedules"]["schedules"] == 10


def test_deep_adds_larger_worlds_and_a_million_schedules(onceonly: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """A world that was not finished is told, and is no failure here."""
    walked = WalkResult(seed=0, schedules=1_000_000, steps=40_000_000, seconds=1000.0, wanted=1_000_000)
    let_the_checker_find(monkeypatch, FINE, CAUGHT)
    let_the_depths_hold(monkeypatch, [CUT_OFF] * len(DEEP), walked)
    done = onceonly("verify", "--deep")
    assert done.code == 0
    assert "1,000,000 random schedules (seed 0), 40,000,000 steps, 0 violations; 1,000 schedules/s" in done.out
    assert "running schedules: 1,000,000 of 1,000,000\n" in done.err
    assert "two copies" in done.out
    answer = onceonly("verify", "--deep", "--json").answer
    assert [each["complete"] for each in answer["deep"]] == [False] * len(DEEP)
    assert answer["schedules"] == {
        "seed": 0,
        "first": 0,
        "schedules": 1_000_000,
        "steps": 40_000_000,
        "seconds": 1000.0,
        "violation": "",
        "number": None,
        "continue": None,
    }


def test_a_violation_in_the_depths_is_a_no(onceonly: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """A schedule is named by its seed and number, told, and saved."""
    history = Counterexample(
        check="large, blocking store", violation="a was lost", steps=(TraceStep("worker A", "commit a", "applied"),)
    )
    walked = WalkResult(
        seed=0, schedules=8, steps=99, seconds=1.0, wanted=1_000_000, violation="a was lost", number=7, history=history
    )
    let_the_checker_find(monkeypatch, FINE, CAUGHT)
    let_the_depths_hold(monkeypatch, [VIOLATED] * len(DEEP), walked)
    done = onceonly("verify", "--deep")
    assert done.code == 1
    assert "random schedule 7 of seed 0" in done.error
    assert "  1. worker A: commit a: applied\n     => a was lost" in done.out
    assert (onceonly.folder / "counterexample-large-blocking-store.json").exists()


def test_code_that_is_not_deterministic_is_refused(onceonly: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 1 and the call that differs, no traceback."""

    def checks(*_: object, **_rest: Any) -> tuple[CheckResult, ...]:
        raise NotDeterministic("one message: its first run made the call\n    forget a")

    monkeypatch.setattr(command, "run_checks", checks)
    done = onceonly("verify")
    assert done.code == 1
    assert "one message: its first run made the call" in done.error
    assert "forget a" in done.err
