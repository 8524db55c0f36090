"""Requests for many documents: which single outcome is true of all of them, and what is sent after an error."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from onceonly.documents.bulk import Outcome, combined, read_all, split, write_all, write_requests
from onceonly.model.errors import CommitFailed, CommitRefused, OnceOnlyError, OutcomeUnknown, RetryableError, SetupError
from onceonly.ports.documents import Change, Version

FAILED, REFUSED, UNKNOWN = CommitFailed("throttled"), CommitRefused("too large"), OutcomeUnknown("no answer")
SCENARIOS: dict[str, tuple[list[Outcome], type[OnceOnlyError] | None]] = {
    "all written": (["v1", "v2"], None),
    "one lost a race": (["v1", None], None),
    "nothing asked": ([], None),
    "all refused for sure": ([FAILED, FAILED], CommitFailed),
    "refused, and the others lost a race": ([None, FAILED], CommitFailed),
    "refused for good after a refusal for now": ([FAILED, REFUSED], CommitRefused),
    "one written before a refusal": (["v1", FAILED], OutcomeUnknown),
    "one deleted before a refusal": (["", FAILED], OutcomeUnknown),
    "one written after a refusal for good": ([REFUSED, "v1"], OutcomeUnknown),
    "one unanswered": (["v1", UNKNOWN], OutcomeUnknown),
    "one unanswered beside a refusal": ([FAILED, UNKNOWN], OutcomeUnknown),
    "an error of the set-up": ([SetupError("the client may send twice")], OutcomeUnknown),
    "an error of no family": ([RetryableError("gone away"), FAILED], OutcomeUnknown),
}


def outcome_of(rule: Callable[[Sequence[Outcome]], tuple[Version | None, ...]], outcomes: Sequence[Outcome]) -> type | None:
    """Return the family of the error that a rule raises; None for answers."""
    try:
        answers = rule(outcomes)
    except OnceOnlyError as error:
        return next(kind for kind in (OutcomeUnknown, CommitRefused, CommitFailed, OnceOnlyError) if isinstance(error, kind))
    assert list(answers) == list(outcomes)
    return None


def first_error(outcomes: Sequence[Outcome]) -> tuple[Version | None, ...]:
    """Raise the first error, whatever else was written."""
    for outcome in outcomes:
        if isinstance(outcome, OnceOnlyError):
            raise outcome
    return tuple(outcome for outcome in outcomes if not isinstance(outcome, OnceOnlyError))


def first_refusal(outcomes: Sequence[Outcome]) -> tuple[Version | None, ...]:
    """Raise the first of several refusals: the rule of Cosmos DB and MongoDB before there was one rule."""
    errors = [outcome for outcome in outcomes if isinstance(outcome, OnceOnlyError)]
    is_certain = all(isinstance(error, CommitFailed) for error in errors)
    if errors and is_certain and not any(isinstance(outcome, str) for outcome in outcomes):
        raise errors[0]
    if errors:
        raise OutcomeUnknown(str(errors[0]))
    return first_error(outcomes)


def doubtful_as_it_is(outcomes: Sequence[Outcome]) -> tuple[Version | None, ...]:
    """Raise what is not definite as it is: the rule of AWS and Azure before there was one rule."""
    errors = [outcome for outcome in outcomes if isinstance(outcome, OnceOnlyError)]
    for error in errors:
        if not isinstance(error, CommitFailed):
            raise error
    return combined(outcomes)


def deleted_is_nothing(outcomes: Sequence[Outcome]) -> tuple[Version | None, ...]:
    """Count only documents that have a new version as written."""
    return combined([outcome or None for outcome in outcomes])


def always_unknown(outcomes: Sequence[Outcome]) -> tuple[Version | None, ...]:
    """Never be sure."""
    try:
        return first_error(outcomes)
    except OnceOnlyError as error:
        raise OutcomeUnknown(str(error)) from error


MUTANTS = {
    first_error: "one written before a refusal",
    first_refusal: "refused for good after a refusal for now",
    doubtful_as_it_is: "an error of the set-up",
    deleted_is_nothing: "one deleted before a refusal",
    always_unknown: "all refused for sure",
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_failed_is_raised_only_when_nothing_was_written(name: str) -> None:
    """And CommitRefused before CommitFailed: the same call can never succeed. All else that went wrong is OutcomeUnknown."""
    outcomes, expected = SCENARIOS[name]
    assert outcome_of(combined, outcomes) is expected


@pytest.mark.parametrize(("rule", "name"), MUTANTS.items())
def test_another_rule_gives_a_wrong_outcome(rule: Callable[..., tuple[Version | None, ...]], name: str) -> None:
    """Among them the two rules of which one had to be right."""
    outcomes, expected = SCENARIOS[name]
    wrong = None
    try:
        wrong = outcome_of(rule, outcomes)
    except AssertionError:
        return
    assert wrong is not expected


async def test_nothing_more_is_sent_after_an_error() -> None:
    """What is under way is waited for, so that the outcome counts it."""
    sent: list[str] = []
    answer = asyncio.Event()

    async def write(change: Change) -> Version:
        sent.append(change.key)
        if change.key == "a":
            raise FAILED
        await answer.wait()
        return "v1"

    changes = [Change(key=key, body=b"{}") for key in "abc"]
    writing = asyncio.ensure_future(write_all(changes, write, at_once=2))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not writing.done()
    answer.set()
    with pytest.raises(OutcomeUnknown, match="1 document written before this error: throttled"):
        await writing
    assert sent == ["a", "b"]


async def test_answers_come_in_the_order_of_the_changes() -> None:
    """Whichever requests the changes are in."""
    changes = [Change(key=key, body=b"{}") for key in "abcd"]
    a, b, c, d = changes

    async def send(request: Sequence[Change]) -> Sequence[Outcome]:
        return [None if change is c else f"version of {change.key}" for change in request]

    answers = await write_requests(changes, [[d, b], [c], [a]], send, at_once=2)
    assert answers == ("version of a", "version of b", None, "version of d")


async def test_a_refused_request_is_one_outcome_of_all_in_it() -> None:
    """So the call is CommitFailed when the other requests wrote nothing either."""
    changes = [Change(key=key, body=b"{}") for key in "abc"]

    async def send(request: Sequence[Change]) -> Sequence[Outcome]:
        if len(request) > 1:
            raise REFUSED
        return [None]

    with pytest.raises(CommitRefused):
        await write_requests(changes, [changes[:1], changes[1:]], send, at_once=1)


async def test_reads_come_in_order_and_stop_at_an_error() -> None:
    """The error is the first one."""
    begun: list[int] = []

    async def read(number: int) -> int:
        begun.append(number)
        await asyncio.sleep(0)
        if number == 2:
            raise UNKNOWN
        return number * 10

    assert await read_all([0, 1, 3], read, at_once=2) == [0, 10, 30]
    begun.clear()
    with pytest.raises(OutcomeUnknown, match="no answer"):
        await read_all([2, 0, 1, 3], read, at_once=1)
    assert begun == [2]


def test_a_request_holds_no_more_than_its_service_takes() -> None:
    """One change that is larger is a request of its own."""
    changes = [Change(key=str(number), body=b"x" * size) for number, size in enumerate([3, 3, 3, 9, 1, 1, 1])]
    sizes = [[len(change.body or b"") for change in request] for request in split(changes, most=2, size=6)]
    assert sizes == [[3, 3], [3], [9], [1, 1], [1]]
    assert [len(request) for request in split(changes, most=9, size=100, size_of=lambda _: 50)] == [2, 2, 2, 1]
    assert list(split([], most=2, size=6)) == []
