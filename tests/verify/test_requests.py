"""Requests that are executed once, under the checker: the shipping code holds, and what breaks it is found."""

import pytest

from onceonly.formats.records import decode_record, encode_record
from onceonly.model.identity import Identity
from onceonly.model.record import Record
from onceonly.model.remote import RemoteRequest, Verb
from onceonly_verify.checks import CHECKS
from onceonly_verify.mutants import MUTANTS
from onceonly_verify.runs import run_check

NAMED = {check.name: check for check in CHECKS}
SMALL = (
    "a request, a failed call",
    "asked by another service, late and duplicated",
    "asked by another service, and deleted before it is executed",
)


@pytest.mark.parametrize("name", SMALL)
def test_what_is_asked_is_executed_once(name: str) -> None:
    """Whatever fails, comes late or comes twice, on the side that asks and on the side that is asked."""
    found = run_check(NAMED[name])
    assert (found.complete, found.violation, found.stuck, found.missing) == (True, "", 0, ())


def test_the_protocols_own_list_of_broken_versions_is_there() -> None:
    """By the names it gives them."""
    wanted = {
        "callee checks request before response",
        "response deleted first",
        "POST answered before dispatch",
        "no tombstone on DELETE",
        "PUT OutcomeUnknown taken as success",
    }
    assert wanted <= {mutant.name for mutant in MUTANTS}


def test_calls_are_stored_with_their_record() -> None:
    """They come back as they were, and an older version says that it cannot read them."""
    record = Record(
        Identity("s", "i"), requests=(RemoteRequest(Verb.POST, "http://a/x/r"), RemoteRequest(Verb.DELETE, "http://a/x/q"))
    )
    stored = encode_record(record)
    assert (decode_record(record.identity, stored), stored[:1]) == (record, b"\x01")
