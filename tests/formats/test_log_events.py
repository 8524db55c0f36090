"""Log events under formatters of others: the text contains the fields, and the template does not change."""

import copy
import logging
import logging.config
import logging.handlers
import queue
from collections.abc import Iterator

import pytest
from uvicorn.config import LOGGING_CONFIG

from onceonly.formats.log_events import MOST_KEYS, EventLogger, LoggedKeys
from onceonly.model.message import Failure, FailureKind, Message, Send
from onceonly.model.record import Answer
from onceonly.runtime.observe.logs import JsonLines, KeyValues, Logs
from onceonly.runtime.observe.observer import Point, PortCall
from tests.cli.terminal import logging_restored

TRACE = 'Traceback (most recent call last):\n  File "shop.py", line 9, in place_order\nValueError: out of stock\n'
TEXT = (
    "message failed, will be retried endpoint=shop type=PlaceOrder source=web message_id=A-{id} due=now "
    'handler=shop.place_order attempt=1 reason="ValueError: out of stock" kind=exception'
)


class Kept(logging.Handler):
    """Formats entries as they are logged."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self.records: list[logging.LogRecord] = []
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Format it."""
        self.records.append(record)
        self.lines.append(self.format(record))


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """Return a logger that only its own handlers hear."""
    with logging_restored():
        one = logging.getLogger("onceonly.tried")
        one.propagate = False
        yield one
        one.handlers.clear()


def formatted(logger: logging.Logger, formatter: logging.Formatter) -> Kept:
    """Log with this formatter."""
    kept = Kept(formatter)
    logger.addHandler(kept)
    return kept


async def fail(logger: logging.Logger, id_: str = "1") -> None:
    """Log the first failure of a message, as a worker does."""
    failure = Failure(
        kind=FailureKind.EXCEPTION, reason="ValueError: out of stock", traceback=TRACE, at=1, handler="shop.place_order"
    )
    message = Message(id=f"A-{id_}", source="web", type="PlaceOrder", body=b"")
    call = PortCall(Point.RETRY_COPY, "shop", (Send(message=message, to="shop", attempts=1, history=(failure,)),))
    async with Logs(logger).around(call):
        call.result = (Answer.TAKEN,)


def uvicorns() -> logging.Formatter:
    """Make the formatter that uvicorn configures by default."""
    settings = copy.deepcopy(LOGGING_CONFIG["formatters"]["default"])
    made = logging.config.DictConfigurator({"version": 1}).configure_formatter({**settings, "use_colors": False})  # type: ignore[attr-defined]
    assert isinstance(made, logging.Formatter)
    return made


@pytest.mark.parametrize(
    ("formatter", "before"),
    [
        (logging.Formatter(logging.BASIC_FORMAT), "WARNING:onceonly.tried:"),
        (uvicorns(), "WARNING:  "),
        (logging.Formatter(), ""),
    ],
    ids=["basicConfig", "uvicorn", "lastResort"],
)
async def test_foreign_formatters_write_the_fields_and_the_traceback(
    logger: logging.Logger, formatter: logging.Formatter, before: str
) -> None:
    """Without a word of configuration."""
    kept = formatted(logger, formatter)
    await fail(logger)
    assert kept.lines == [f"{before}{TEXT.format(id=1)}\n{TRACE}".rstrip()]


async def test_our_formatters_write_each_field_once(logger: logging.Logger) -> None:
    """As text after the message, and as a member of the JSON document. The message is the template."""
    text, document = formatted(logger, KeyValues()), formatted(logger, JsonLines())
    await fail(logger)
    assert text.lines[0].split(" ", 2)[2] == f"{TEXT.format(id=1)}\n{TRACE}"
    assert '"message": "message failed, will be retried"' in document.lines[0]
    assert (document.lines[0].count("out of stock"), "event" in document.lines[0]) == (2, False)  # reason, traceback


async def test_the_template_is_the_same_for_every_entry_of_an_event(logger: logging.Logger) -> None:
    """Tools group by `record.msg`, or by the attribute `event`; the fields are attributes."""
    kept = formatted(logger, logging.Formatter())
    for id_ in "12":
        await fail(logger, id_)
    assert {record.msg for record in kept.records} == {"message failed, will be retried %s"}
    assert {vars(record)["event"] for record in kept.records} == {"message failed, will be retried"}
    assert [vars(record)["message_id"] for record in kept.records] == ["A-1", "A-2"]


async def test_an_entry_that_went_through_a_queue_has_its_fields_once(logger: logging.Logger) -> None:
    """A queue handler formats the message and removes its arguments."""
    waiting: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    logger.addHandler(logging.handlers.QueueHandler(waiting))
    await fail(logger)
    record = waiting.get_nowait()
    assert KeyValues().format(record).count("message_id") == 1
    assert logging.Formatter().format(record) == f"{TEXT.format(id=1)}\n{TRACE}".rstrip()


@pytest.mark.parametrize("formatter", [logging.Formatter(), KeyValues()])
def test_what_a_sender_wrote_adds_no_line_and_obeys_no_terminal(logger: logging.Logger, formatter: logging.Formatter) -> None:
    """Also under a formatter that escapes nothing: an id could look like another entry."""
    kept = formatted(logger, formatter)
    hostile = "1\nCRITICAL \x1b[2J%s %(name)s"
    EventLogger(logger).warning("odd at 100%", extra={"message_id": hostile, "traceback": f"{hostile}\n"})
    (line,) = kept.lines
    text = line.rstrip("\n")
    assert text.endswith('odd at 100% message_id="1\\nCRITICAL \\u001b[2J%s %(name)s"\n1\nCRITICAL \\x1b[2J%s %(name)s')


def test_an_entry_names_the_line_that_logged_it(logger: logging.Logger) -> None:
    """Not the class between."""
    kept = formatted(logger, logging.Formatter("%(filename)s %(funcName)s %(message)s"))
    EventLogger(logger).warning("odd", extra={"endpoint": "shop"})
    EventLogger(logger).log(logging.ERROR, "odd")
    place = "test_log_events.py test_an_entry_names_the_line_that_logged_it"
    assert kept.lines == [f"{place} odd endpoint=shop", f"{place} odd"]


def test_an_exception_is_part_of_the_entry(logger: logging.Logger) -> None:
    """That which is handled, or the one given."""
    kept = formatted(logger, logging.Formatter())
    try:
        int("one")
    except ValueError:
        EventLogger(logger).exception("process failed, exiting")
    EventLogger(logger).error("worker failed", exc_info=KeyError("two"), extra={"endpoint": "shop"})
    first, second = kept.lines
    assert (first.splitlines()[0], first.splitlines()[-1]) == (
        "process failed, exiting",
        "ValueError: invalid literal for int() with base 10: 'one'",
    )
    assert second.splitlines() == ["worker failed endpoint=shop", "KeyError: 'two'"]


def test_nothing_is_formatted_for_a_level_that_is_off(logger: logging.Logger) -> None:
    """DEBUG entries of a million messages cost a comparison."""
    kept = formatted(logger, logging.Formatter())
    logger.setLevel(logging.INFO)
    log = EventLogger(logger)
    log.debug("handler succeeded", extra={"endpoint": "shop"})
    assert (kept.lines, log.isEnabledFor(logging.DEBUG)) == ([], False)


def test_a_key_is_new_once_and_their_number_is_bounded() -> None:
    """A program that makes new names for ever costs neither memory nor entries."""
    logged = LoggedKeys()
    assert [logged.add("shop", "a"), logged.add("shop", "b"), logged.add("shop", "a")] == [True, True, False]
    assert sum(logged.add(number) for number in range(2 * MOST_KEYS)) == MOST_KEYS - 2
    assert not logged.add("other")
    logged.clear()
    assert logged.add("shop", "a")
