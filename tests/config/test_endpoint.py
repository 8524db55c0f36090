"""The settings of deduplication: what cannot work is refused where it is written, all of it at once."""

from datetime import timedelta
from typing import Any

import pytest

from onceonly import DedupStore, Endpoint, SetupError, Tokens

SECRET = "pa55word"  # noqa: S105 - what no message may show


@pytest.mark.parametrize("url", ["", "dynamodb", "://table", f"user:{SECRET}@host", 5])
def test_a_dedup_store_needs_the_url_of_a_place(url: Any) -> None:
    """Its text is not repeated: a password may be in it."""
    with pytest.raises(SetupError, match="DedupStore: url must be a URL") as caught:
        DedupStore(url)
    assert SECRET not in str(caught.value)


def test_all_that_is_wrong_with_a_dedup_store_is_told_at_once() -> None:
    """Url and retention together."""
    with pytest.raises(SetupError, match=r"url must.*retention must"):
        DedupStore("here", retention=timedelta())


def test_all_that_is_wrong_with_tokens_is_told_at_once() -> None:
    """A text where a list of names belongs is the commonest mistake."""
    wrong: Any = {"order-placed": "billing", "": ["billing"], "order-paid": ["No Name", "shop"]}
    with pytest.raises(SetupError) as caught:
        Tokens("here", subscribers=wrong, sweep_after=timedelta(seconds=-1))
    told = str(caught.value)
    assert told.count("Tokens: ") == 5
    for words in ("url must", "sweep_after must", "must be a list", "'' is not an event type", "'No Name': an endpoint name"):
        assert words in told


def test_subscribers_must_be_a_mapping() -> None:
    """From types of events to endpoints."""
    wrong: Any = ["order-placed"]
    with pytest.raises(SetupError, match="must map event types"):
        Tokens(subscribers=wrong)


def test_nobody_changes_the_subscribers_afterwards() -> None:
    """They are copied: tokens issued for other endpoints than those declared would be lost."""
    takers = ["billing"]
    declared = {"order-placed": takers}
    tokens = Tokens(subscribers=declared)
    takers.append("stock")
    declared["order-paid"] = []
    assert tokens.subscribers == {"order-placed": ("billing",)}


@pytest.mark.parametrize("name", ["timeout", "relay_after"])
@pytest.mark.parametrize("value", [timedelta(seconds=1), "10", None, True, float("nan"), 0, 86_401])
def test_what_is_no_number_of_seconds_is_refused(name: str, value: object) -> None:
    """With the name of the setting."""
    with pytest.raises(SetupError, match=f"{name} must be a number of seconds above 0, at most a day, not "):
        Endpoint("shop", store="memory://a", transport="memory://a", **{name: value})  # type: ignore[arg-type]
