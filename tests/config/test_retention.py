"""Settings that cannot lie: what would be forgotten too early is refused where it is written, with the arithmetic."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from onceonly import ControlMessages, DedupStore, Endpoint, History, Off, Retry, SetupError, Tokens
from onceonly.config.deduplication import Deduplication
from onceonly.config.endpoint import Settings
from onceonly.endpoint.host import host_of
from onceonly.errors import InvalidHandler, TransactionMisused
from onceonly.model.wording import in_words, parse_duration

MINUTES_16 = timedelta(minutes=16, seconds=22)
"""How long the delays of `Retry()` take at most: 1.2 x (2 + 8 + 32 + 128 + 512) + 0.2 x 3.6 s."""


def settings(**changes: Any) -> Settings:
    """Make settings in memory."""
    return Settings(**{"name": "shop", "store": "memory://a", "transport": "memory://a"} | changes)


def told(**changes: Any) -> str:
    """Return what is said against settings, in one line."""
    with pytest.raises(SetupError) as caught:
        settings(**changes)
    _, problem = str(caught.value).split("\n  * ")
    return problem


SHORT = timedelta(minutes=10)


@pytest.mark.parametrize(
    ("kept", "name"), [(History(retention=SHORT), "History"), (DedupStore("memory://done", retention=SHORT), "DedupStore")]
)
def test_a_retention_must_be_longer_than_all_retries_together(kept: Deduplication, name: str) -> None:
    """Attempts, delays and a person's: the sum is in the message."""
    assert told(deduplication=kept) == (
        f"{name}: retention of 10 min is not longer than the longest span of retries, 8 attempts (3 at once, 5 delayed) of "
        "30 s + delays of 13 min 38 s + manual_retry of 0 s = 17 min 38 s. Make the retention "
        "longer, or reduce attempts, timeout, delays or manual_retry"
    )


def test_what_a_person_was_promised_counts() -> None:
    """A week is not longer than a week and some minutes."""
    assert "+ manual_retry of 7 d = 7 d" in told(manual_retry=timedelta(days=7))
    assert settings(manual_retry=timedelta(days=6)).manual_retry == timedelta(days=6)


def test_a_retention_equal_to_the_span_is_too_short() -> None:
    """A copy that comes in the last moment must be known."""
    retry = Retry(immediate=0, delayed=1, first_delay=5, max_delay=5, jitter=0)
    given: dict[str, Any] = {"retry": retry, "timeout": 10.0, "max_commit": timedelta(seconds=1)}
    assert "= 25 s" in told(deduplication=History(retention=timedelta(seconds=25)), **given)
    assert settings(deduplication=History(retention=timedelta(seconds=26)), **given)


def test_tokens_elsewhere_are_not_swept_while_their_transaction_may_be_at_work() -> None:
    """Its attempt would be fenced, and its client told to try again."""
    second, hour = timedelta(seconds=1), timedelta(hours=1)
    given: dict[str, Any] = {"store": "sqlite:///a.db", "max_commit": hour}
    assert told(deduplication=Tokens("sqlite:///t.db", sweep_after=second), **given).endswith(
        "Tokens: sweep_after of 1 s is not longer than max_commit=1 h, the longest duration of a transaction: running "
        "transactions would be cancelled. Make sweep_after longer, or max_commit shorter"
    )
    assert settings(deduplication=Tokens("sqlite:///t.db", sweep_after=hour + second), **given)
    assert settings(deduplication=Tokens(sweep_after=second), **given)  # beside the store nothing is swept


@pytest.mark.parametrize("kept", [History, Tokens, lambda retention: DedupStore("memory://done", retention)])
def test_a_retention_must_be_longer_than_the_longest_commit(kept: Any) -> None:
    """Else the answer to a client's key is forgotten before its transaction is committed."""
    problem = told(
        store="sqlite:///a.db",
        deduplication=kept(retention=timedelta(minutes=30)),
        max_commit=timedelta(minutes=30),
    )
    assert problem.endswith(
        "retention of 30 min is not longer than max_commit=30 min, the longest duration of a transaction. "
        "Make the retention longer, or max_commit shorter"
    )


SERVICE = "dynamodb://eu-central-1/shop"


def test_a_commit_may_not_come_later_than_control_messages_look_for_it() -> None:
    """Where a store cannot be searched: found where the endpoint is made, not in the first transaction."""
    assert told(store=SERVICE, max_commit=timedelta(minutes=6)) == (
        "max_commit of 6 min is longer than ControlMessages(max_commit=5 min). Make it shorter, or make the other one longer; "
        "its delays (42 min 40 s in total) must be longer than it, and its retention (1 d) at least delays + max_commit"
    )
    assert settings(store=SERVICE, max_commit=timedelta(minutes=5))
    longer = ControlMessages(max_commit=timedelta(minutes=6))
    assert settings(store=SERVICE, max_commit=timedelta(minutes=6), control=longer)


def test_where_there_are_no_control_messages_they_limit_nothing() -> None:
    """In SQL, in memory without entities, and without transactions."""
    for store in ("sqlite:///a.db", "memory://a"):
        assert settings(store=store, max_commit=timedelta(minutes=6))
    assert settings(store=SERVICE, max_commit=timedelta(minutes=6), deduplication=Off())


async def test_entities_in_memory_are_finished_by_control_messages_so_they_limit_its_commits() -> None:
    """Told at start: handlers come after settings."""
    shop = Endpoint("shop", store="memory://a", transport="memory://a", max_commit=timedelta(minutes=6))

    @dataclass
    class Account:
        id: str
        balance: int = 0

    @shop.handler(type="deposit", entity=Account, key="id")
    async def deposit(body: dict[str, str], account: Account) -> None:
        """Do nothing."""

    with pytest.raises(SetupError, match=r"max_commit of 6 min is longer than ControlMessages"):
        async with shop.opened():
            pass


def test_what_is_not_kept_at_all_cannot_be_kept_too_short() -> None:
    """With tokens copies are known by their token, with Off by nothing."""
    assert settings(deduplication=Off(), manual_retry=timedelta(days=365)).retention is None
    assert settings(store="sqlite:///a.db", deduplication=Tokens(), manual_retry=timedelta(days=365))


def test_all_that_is_wrong_with_a_retention_is_told_at_once() -> None:
    """With everything else."""
    with pytest.raises(SetupError) as caught:
        settings(
            deduplication=History(retention=timedelta(seconds=20)),
            janitor_interval=timedelta(seconds=2),
            health="everywhere",
            timeout=5.0,
        )
    assert len(str(caught.value).splitlines()) == 5


def test_a_janitor_comes_at_least_once_in_a_slice() -> None:
    """A day has twelve slices of two hours."""
    day = History(retention=timedelta(days=1))
    assert told(deduplication=day, janitor_interval=timedelta(hours=3)) == (
        "janitor_interval of 3 h is longer than one time bucket, retention / 12 = 1 d / 12 = 2 h: "
        "messages would wait for the janitor. Make the interval shorter, or the retention longer"
    )
    assert settings(deduplication=day, janitor_interval=timedelta(hours=2)).interval == timedelta(hours=2)


def test_without_an_interval_the_janitor_comes_every_minute_or_twice_in_a_slice() -> None:
    """Whichever is shorter."""
    assert settings().interval == timedelta(minutes=1)
    quick = {"retry": Retry(delayed=0, immediate=0), "timeout": 1.0, "max_commit": timedelta(seconds=1)}
    assert settings(deduplication=History(timedelta(minutes=4)), **quick).interval == timedelta(seconds=10)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_commit": timedelta()}, "max_commit must be"),
        ({"max_commit": timedelta(hours=2)}, "max_commit must be"),
        ({"max_commit": 30}, "max_commit must be"),
        ({"manual_retry": timedelta(seconds=-1)}, "manual_retry must be"),
        ({"manual_retry": 5}, "manual_retry must be"),
        ({"janitor": "no"}, "janitor must be"),
        ({"janitor_interval": 60}, "janitor_interval must be"),
        ({"janitor_interval": timedelta()}, "janitor_interval must be"),
        ({"health": 8080}, "health: must be text, not an int: use HOST:PORT"),
        ({"health": "here"}, "health: 'here' is not an address: use HOST:PORT"),
    ],
)
def test_each_setting_says_what_it_takes(changes: dict[str, Any], words: str) -> None:
    """In one line."""
    assert told(**changes).startswith(words)


def test_a_handlers_own_retries_count_as_well() -> None:
    """Found when the endpoint is about to start, for handlers come after settings."""
    shop = Endpoint("shop", store="memory://a", transport="memory://a")

    @shop.handler(type="slow", retry=Retry(delayed=9, first_delay=86_400, max_delay=86_400))
    async def slow(body: dict[str, int]) -> None:
        """Do nothing."""

    with pytest.raises(
        InvalidHandler, match=r"handler test_.*slow: History: retention of 7 d is not longer than .*= 10 d 19 h"
    ):
        host_of(shop).handlers()


def test_a_handlers_own_timeout_counts_as_well() -> None:
    """Each attempt may take so long."""
    shop = Endpoint("shop", store="memory://a", transport="memory://a")

    @shop.handler(type="slow", timeout=86_400.0)
    async def slow(body: dict[str, int]) -> None:
        """Do nothing."""

    with pytest.raises(InvalidHandler, match=r"of 1 d \+ delays"):
        host_of(shop).handlers()


def test_a_transaction_may_not_take_as_long_as_its_answer_is_kept() -> None:
    """Told where it is opened; the endpoint's own limit is taken when none is given."""
    quick = {"retry": Retry(delayed=0, immediate=0), "timeout": 1.0, "max_commit": timedelta(seconds=5)}
    kept = History(retention=timedelta(minutes=1))
    shop: Any = Endpoint("shop", store="memory://a", transport="memory://a", deduplication=kept, **quick)
    assert shop.transaction()._asked.max_commit == 5000
    with pytest.raises(TransactionMisused, match="max_commit of 1 min is not shorter than the retention of 1 min"):
        shop.transaction(max_commit=timedelta(minutes=1))


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (0.25, "0.25 s"), (59, "59 s"), (60, "1 min"), (3661, "1 h 1 min"), (7 * 86_400, "7 d"), (-60, "-1 min")],
)
def test_durations_are_spelled_out_by_their_two_largest_units(seconds: float, words: str) -> None:
    """Below a minute with decimals."""
    assert in_words(seconds) == words


@pytest.mark.parametrize(("text", "hours"), [("7d", 168), ("1h30min", 1.5), ("90 m", 1.5), ("1w 1d", 192), ("5400s", 1.5)])
def test_durations_are_read_with_their_units(text: str, hours: float) -> None:
    """Several of them add up."""
    assert parse_duration(text) == timedelta(hours=hours)


@pytest.mark.parametrize("text", ["", "7", "d", "7 days", "-1d", "0s", "1e3d", "99999d"])
def test_what_is_no_duration_is_told(text: str) -> None:
    """With what to write."""
    with pytest.raises(ValueError, match=r"such as 7d|ten years"):
        parse_duration(text)
