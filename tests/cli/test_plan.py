"""`onceonly plan`: numbers that were measured here, arithmetic that can be checked, and nothing left of it."""

import json
from datetime import timedelta

import pytest

from onceonly.config.estimates import Measurements, TableSample, estimate
from tests.cli.terminal import Terminal

DAY = 86_400
FOUND = Measurements(
    rows=1000,
    bucket=TableSample(bytes=76_000, eviction=0.05),
    arrivals=TableSample(bytes=150_000, eviction=2.0),
    tokens=TableSample(bytes=60_000, eviction=0.1),
)


def test_rows_and_bytes_follow_from_rate_and_retention() -> None:
    """Thirteen slices are there at the most: twelve in full, and the one that is under way."""
    ring, arrivals, tokens = estimate(
        FOUND, rate=500, retention=timedelta(days=12), in_flight=timedelta(seconds=60), whole=True
    )
    assert (ring.rows, ring.row_bytes, ring.bytes) == (13 * DAY * 500, 76.0, 13 * DAY * 500 * 76)
    assert (arrivals.rows, arrivals.row_bytes, arrivals.bytes) == (12 * DAY * 500, 150.0, 12 * DAY * 500 * 150)
    assert (tokens.rows, tokens.row_bytes, tokens.bytes) == (30_000, 60.0, 1_800_000)


def test_what_eviction_costs_follows_from_the_sample() -> None:
    """A bucket costs the same however full it is where it is truncated, and in proportion where it is not."""
    given = {"rate": 500, "retention": timedelta(days=12), "in_flight": timedelta(seconds=60)}
    ring, arrivals, tokens = estimate(FOUND, **given, whole=True)  # type: ignore[arg-type] # as said above
    assert (ring.every, ring.seconds) == (DAY, 0.05)
    assert arrivals.share == pytest.approx(500 * 2.0 / 1000)
    assert tokens.share == pytest.approx(500 * 0.1 / 1000)
    by_rows, *_ = estimate(FOUND, **given, whole=False)  # type: ignore[arg-type] # the same
    assert by_rows.seconds == pytest.approx(0.05 * 500 * DAY / 1000)


def test_it_measures_on_the_endpoints_own_database_and_leaves_nothing(onceonly: Terminal) -> None:
    """The tables there are stay as they are."""
    onceonly("schema", "create", "shop:shop")
    before = onceonly.rows("shop.db", "SELECT name FROM sqlite_master ORDER BY name")
    done = onceonly("plan", "shop:shop", "--rate", "500", "--retention", "7d", "--sample", "2000", "--json")
    assert done.code == 0
    assert onceonly.rows("shop.db", "SELECT name FROM sqlite_master ORDER BY name") == before
    planned = done.answer
    assert (planned["rate"], planned["retention"], planned["bucket"], planned["sample"]) == (500, 7 * DAY, 7 * DAY / 12, 2000)
    ring, arrivals, tokens = planned["kinds"]
    assert ring["rows"] == 500 * 7 * DAY * 13 // 12
    assert 24 < ring["row_bytes"] < 95
    assert ring["row_bytes"] < arrivals["row_bytes"]
    assert ring["bytes"] == pytest.approx(ring["rows"] * ring["row_bytes"], rel=0.01)
    assert 16 < tokens["row_bytes"] < 95
    assert all(each["seconds"] > 0 for each in planned["kinds"])


def test_people_get_a_table(onceonly: Terminal) -> None:
    """Without --retention that of the endpoint."""
    onceonly("schema", "create", "shop:shop")
    done = onceonly("plan", "shop:shop", "--rate", "1", "--sample", "1000")
    assert "1 messages per second, kept for 7 d in time buckets of 14 h, on sqlite:///shop.db" in done.out
    assert "655,200" in done.out
    assert "measured with 1,000 rows" in done.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("shop:shop", "--rate", "0"), "--rate is 0; set it to a number"),
        (("shop:shop", "--rate", "1", "--retention", "7"), "--retention: '7' is not a duration"),
        (("shop:shop", "--rate", "1", "--retention", "5min"), "is not longer than the longest span of retries"),
        (("sqlite:///nowhere.db", "--rate", "1"), "database file sqlite:///nowhere.db does not exist"),
        (("memory://a", "--rate", "1"), "memory://a is not a database"),
        (("shop:shop", "--rate", "1", "--prices", "x.toml"), "--prices has no effect"),
        (("redis://127.0.0.1:1/0", "--rate", "1", "--prices", "x.toml"), "x.toml cannot be read (No such file or directory)"),
        (("redis://127.0.0.1:1/0", "--rate", "1", "--prices", "."), ". cannot be read (Is a directory)"),
        (("redis://127.0.0.1:1/0", "--rate", "1", "--prices", "shop.py"), "shop.py is not a TOML file"),
    ],
)
def test_what_cannot_be_planned_is_told(onceonly: Terminal, arguments: tuple[str, ...], words: str) -> None:
    """With exit code 2; a retention that the endpoint would refuse is no plan."""
    onceonly("schema", "create", "shop:shop")
    done = onceonly("plan", *arguments)
    assert done.code == 2
    assert words in done.err


def test_json_is_all_there_is_on_standard_output(onceonly: Terminal) -> None:
    """For programs."""
    onceonly("schema", "create", "shop:shop")
    assert json.loads(onceonly("plan", "sqlite:///shop.db", "--rate", "5", "--sample", "1000", "--json").out)["rate"] == 5


def change(onceonly: Terminal, *lines: str) -> None:
    """Add lines to the program."""
    program = onceonly.folder / "shop.py"
    program.write_text("\n".join((program.read_text(), *lines)))


def asking_for(days: int, more: str = "") -> str:
    """Write what has the shop keep claims for so long."""
    history = f'__import__("onceonly").History(__import__("datetime").timedelta(days={days}))'
    return f'shop.settings = __import__("dataclasses").replace(shop.settings, deduplication={history}{more})'


SMALL = ("--rate", "1", "--sample", "1000")


def test_before_anybody_has_used_the_tables_it_plans_with_the_endpoints_own_and_decides_nothing(
    onceonly: Terminal,
) -> None:
    """The retention is not decided yet: the first start sets it."""
    change(onceonly, asking_for(3))
    onceonly("schema", "create", "shop:shop")
    planned = onceonly("plan", "shop:shop", *SMALL, "--json").answer
    assert (planned["retention"], planned["tables"]) == (3 * DAY, None)
    assert planned["advice"].startswith("the store tables are unused: the first endpoint that starts sets their retention")
    assert onceonly.rows("shop.db", "SELECT * FROM onceonly_ring WHERE width > 0") == []


@pytest.mark.parametrize("place", ["shop:shop", "sqlite:///shop.db"])
def test_it_plans_with_what_the_tables_were_cut_for(onceonly: Terminal, place: str) -> None:
    """An endpoint that asks for less gets that much, so less would be a wrong plan."""
    onceonly("janitor", "shop:shop")
    change(onceonly, asking_for(3))
    done = onceonly("plan", place, *SMALL, "--json")
    assert (done.answer["retention"], done.answer["bucket"]) == (7 * DAY, 7 * DAY / 12)
    assert done.answer["tables"] == {"retention": 7 * DAY, "bucket": 7 * DAY / 12}
    kept = "claims are kept for 7 d"
    assert done.answer["advice"].startswith(kept)
    assert ("also of an endpoint that asks for 3 d, until `onceonly ret" in done.answer["advice"]) == (place == "shop:shop")
    shown = onceonly("plan", place, *SMALL)
    assert "kept for 7 d in time buckets of 14 h" in shown.out
    assert kept in shown.err


def test_it_says_what_another_retention_would_take(onceonly: Terminal) -> None:
    """It plans with it all the same; what is stored must be changed first."""
    onceonly("janitor", "shop:shop")
    done = onceonly("plan", "shop:shop", *SMALL, "--retention", "30d", "--json")
    assert (done.code, done.answer["retention"], done.answer["tables"]["retention"]) == (0, 30 * DAY, 7 * DAY)
    assert "An endpoint that asks for 30 d does not start: `onceonly retention set shop:shop 30d`" in done.answer["advice"]
    same = onceonly("plan", "shop:shop", *SMALL, "--retention", "7d", "--json").answer["advice"]
    assert same == "claims are kept for 7 d"


def test_a_plan_for_ever_says_what_each_year_adds(onceonly: Terminal) -> None:
    """Nothing is deleted, so there is no most."""
    onceonly("janitor", "shop:shop")
    done = onceonly("plan", "shop:shop", *SMALL, "--retention", "forever", "--json")
    assert (done.answer["retention"], done.answer["bucket"]) == (None, None)
    claims, foreign, tokens = done.answer["kinds"]
    for kind in (claims, foreign):
        assert (kind["rows"], kind["evicted"], kind["share"]) == (365 * DAY, "never: this many each year", 0)
    assert tokens["share"] > 0
    assert "`onceonly retention set shop:shop forever` never deletes one" in done.answer["advice"]
    shown = onceonly("plan", "shop:shop", *SMALL, "--retention", "forever")
    assert "kept forever" in shown.out
    assert "never: this many each year" in " ".join(shown.out.split())


def test_an_endpoint_that_only_sends_can_be_planned_for(onceonly: Terminal) -> None:
    """No worker of it starts, but it names a database, in which others handle."""
    (onceonly.folder / "office.py").write_text(
        'from onceonly import Endpoint\ndesk = Endpoint("desk", store="sqlite:///shop.db", transport="sqlite:///queue.db")\n'
    )
    onceonly("schema", "create", "office:desk")
    assert onceonly("plan", "office:desk", *SMALL).code == 0


def test_tables_of_an_older_version_are_no_tables_that_nobody_has_used(onceonly: Terminal) -> None:
    """A start refuses them, and so does the plan."""
    onceonly("janitor", "shop:shop")
    onceonly.change("shop.db", "UPDATE onceonly_schema SET version = 2 WHERE component = 'store'")
    planned, started = onceonly("plan", "shop:shop", *SMALL), onceonly("run", "shop:shop", "--drain")
    assert (planned.code, planned.out, planned.err) == (2, "", started.err)
    assert "have version 2, which cannot be upgraded" in planned.err
    assert "run `onceonly schema create shop:shop`" in planned.err


IMPATIENT = """
shop._registered.handlers.clear()
shop.handler(retry=__import__("onceonly").Retry(delayed=500))(place_order)
"""


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (asking_for(30), "retention is 30 d, but the claims of endpoint 'shop' are kept for 7 d"),
        (IMPATIENT, "endpoint 'shop' cannot start: handler place_order: History: retention of 7 d is not longer than"),
        (asking_for(7, ', timeout=__import__("math").inf'), "timeout must be a number of seconds above 0"),
        (
            asking_for(7, ', janitor_interval=__import__("datetime").timedelta(days=1)'),
            "janitor_interval of 1 d is longer than",
        ),
    ],
    ids=["ring", "handler", "setting", "janitor"],
)
def test_what_a_start_would_refuse_is_refused_in_the_same_words(onceonly: Terminal, lines: str, words: str) -> None:
    """With the same exit code, and nothing on standard output."""
    onceonly("janitor", "shop:shop")
    change(onceonly, lines)
    planned = onceonly("plan", "shop:shop", *SMALL)
    started = onceonly("run", "shop:shop", "--drain")
    assert words in planned.err
    assert (planned.code, planned.out, planned.err) == (2, "", started.err)
    assert started.code == 2


def test_what_a_start_with_the_retention_asked_for_would_refuse_is_refused(onceonly: Terminal) -> None:
    """Before anything is measured."""
    onceonly("janitor", "shop:shop")
    change(onceonly, asking_for(7, ', janitor_interval=__import__("datetime").timedelta(hours=1)'))
    done = onceonly("plan", "shop:shop", *SMALL, "--retention", "6h")
    assert (done.code, done.out) == (2, "")
    assert "janitor_interval of 1 h is longer than one time bucket, retention / 12 = 6 h / 12 = 30 min" in done.err


DOCUMENTS = "dynamodb://eu-central-1/orders"
ON_DOCUMENTS = (DOCUMENTS, "--rate", "100", "--json")


def test_a_document_store_is_planned_without_a_connection(onceonly: Terminal) -> None:
    """Each algorithm, for the endpoint's rate; the retention is the default."""
    planned = onceonly("plan", *ON_DOCUMENTS).answer
    assert (planned["store"], planned["chosen"], planned["retention"], planned["currency"]) == (DOCUMENTS, "", 7 * DAY, "USD")
    by_name = {each["algorithm"]: each for each in planned["algorithms"]}
    assert {name: each["operations"] for name, each in by_name.items()} == {
        "History": 3,
        "DedupStore": 5,
        "Tokens": 7,
        "Off": 3,
    }
    assert by_name["DedupStore"]["documents"] == 100 * (7 * DAY + 3600)
    assert [use["service"] for use in by_name["DedupStore"]["uses"]] == ["dynamodb"]
    assert 0 < by_name["Off"]["price"] < by_name["History"]["price"] < by_name["DedupStore"]["price"]
    assert planned["warnings"] == []


def test_the_price_table_can_be_printed_edited_and_used(onceonly: Terminal) -> None:
    """The printed file gives the same plan; another price gives another one."""
    printed = onceonly("plan", "--print-prices")
    assert printed.code == 0
    prices = onceonly.folder / "prices.toml"
    prices.write_text(printed.out, encoding="utf-8")
    before = onceonly("plan", *ON_DOCUMENTS).answer
    same = onceonly("plan", *ON_DOCUMENTS, "--prices", "prices.toml").answer
    assert same.pop("prices_from") == "prices.toml"
    assert before.pop("prices_from") == "the built-in example prices"
    assert same == before
    prices.write_text(printed.out.replace("price = 0.625", "price = 6.25").replace('"USD"', '"EUR"'), encoding="utf-8")
    dearer = onceonly("plan", *ON_DOCUMENTS, "--prices", "prices.toml").answer
    assert dearer["currency"] == "EUR"
    assert all(now["price"] > 5 * then["price"] for now, then in zip(dearer["algorithms"], before["algorithms"], strict=True))


def test_people_get_a_table_of_algorithms(onceonly: Terminal) -> None:
    """With what it is computed for, and whose prices these are."""
    done = onceonly("plan", DOCUMENTS, "--rate", "100", "--entities", "1000", "--retention", "7d")
    assert f"100 messages per second, kept for 7 d, on {DOCUMENTS}" in done.out
    assert "DedupStore" in done.out
    assert "billion write units" in done.out
    assert "does not fit" in done.out
    assert "warning: History does not fit: the document of an entity would have" in done.err
    assert "1,000 entities of 1,000 bytes" in done.err
    assert "the built-in example prices, dated 2026-" in done.err
    assert "not an offer" in done.err


@pytest.mark.parametrize("code", ["timedelta(days=2)", "FOREVER"])
def test_a_plan_for_ever_on_documents_says_what_each_year_adds(onceonly: Terminal, code: str) -> None:
    """In code or by --retention: documents, bytes and price of what is never deleted; tokens are deleted as ever."""
    program = LEDGER.replace("timedelta(days=2)", code).replace("DedupStore, Endpoint", "FOREVER, DedupStore, Endpoint")
    (onceonly.folder / "ledger.py").write_text(program)
    option = () if code == "FOREVER" else ("--retention", "forever")
    asked = ("plan", "ledger:ledger", "--rate", "1", "--entities", "1000000", *option)
    planned = onceonly(*asked, "--json").answer
    by_name = {each["algorithm"]: each for each in planned["algorithms"]}
    marks, history = by_name["DedupStore"], by_name["History"]
    assert (planned["chosen"], planned["retention"], marks["documents"]) == ("DedupStore", None, 365 * DAY)
    assert (marks["each_year"]["documents"], marks["each_year"]["bytes"]) == (365 * DAY, marks["bytes"])
    assert history["each_year"]["largest"] > 32 * 80
    assert by_name["Tokens"]["each_year"] is by_name["Off"]["each_year"] is None
    shown = onceonly(*asked)
    assert f"1 messages per second, kept forever, on {DOCUMENTS}" in shown.out
    words = " ".join(shown.out.replace("│", " ").split())
    assert "more each year" in words
    assert "nothing is deleted" in shown.err
    assert "History: the document of an entity grows by" in shown.err


LEDGER = f"""
from dataclasses import dataclass
from datetime import timedelta

from onceonly import DedupStore, Endpoint


@dataclass
class Deposit:
    owner: str


@dataclass
class Account:
    owner: str
    balance: int = 0


marks = DedupStore("s3://done", retention=timedelta(days=2))
ledger = Endpoint("ledger", store="{DOCUMENTS}", transport="memory://plan", deduplication=marks)


@ledger.handler(entity=Account, key="owner")
def deposit(command: Deposit, account: Account) -> None:
    account.balance += 1
"""


def test_an_endpoints_own_algorithm_and_places_are_planned(onceonly: Terminal) -> None:
    """Marks in another service have its prices; the endpoint's retention counts, and a start's refusals hold."""
    (onceonly.folder / "ledger.py").write_text(LEDGER)
    planned = onceonly("plan", "ledger:ledger", "--rate", "100", "--json").answer
    assert (planned["chosen"], planned["retention"]) == ("DedupStore", 2 * DAY)
    by_name = {each["algorithm"]: each for each in planned["algorithms"]}
    assert [use["service"] for use in by_name["DedupStore"]["uses"]] == ["dynamodb", "s3"]
    assert [use["service"] for use in by_name["Tokens"]["uses"]] == ["dynamodb"]
    refused = onceonly("plan", "ledger:ledger", "--rate", "100", "--retention", "5min")
    assert (refused.code, "is not longer than the longest span of retries" in refused.err) == (2, True)


def test_a_file_without_the_service_is_refused(onceonly: Terminal) -> None:
    """With the table that is missing."""
    text = 'currency = "EUR"\ndate = 2026-01-31\nservices = {}\n'
    (onceonly.folder / "prices.toml").write_text(text)
    done = onceonly("plan", *ON_DOCUMENTS, "--prices", "prices.toml")
    assert done.code == 2
    assert "prices.toml has no prices for dynamodb://: add a table [services.dynamodb]" in done.err
