"""Structured logs: what a person must know, with the fields to find it, and nothing for what went well."""

import json
import logging
from types import SimpleNamespace

import pytest

from onceonly.model.errors import OutcomeUnknown, RetryableError, UpgradeRequired
from onceonly.model.message import Failure, FailureKind, Message, Send
from onceonly.model.record import Answer
from onceonly.model.retry import Retry
from onceonly.model.ring import Undecidable
from onceonly.ports.store import BeginResult, UndecidableMessage
from onceonly.runtime.observe.logs import JsonLines, KeyValues, Logs, log_to_stderr
from onceonly.runtime.observe.observer import Point, PortCall
from tests.cli.terminal import logging_restored
from tests.log_events import event_in, events
from tests.runtime.harness import ScriptedHandlers, SimulatedEndpoint, failing


def entries(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return what the observer said."""
    return [record for record in caplog.records if record.name == "onceonly"]


async def test_a_message_that_succeeds_is_not_mentioned(caplog: pytest.LogCaptureFixture) -> None:
    """A million messages make no line."""
    caplog.set_level("INFO", "onceonly")
    simulated = await SimulatedEndpoint().open("a", "b")
    await simulated.work(also=[Logs()])
    assert entries(caplog) == []


async def test_every_run_of_a_handler_is_logged_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    """With the message, how long it took, and why it failed."""
    caplog.set_level("DEBUG", "onceonly")

    def script(message: Message, _resources: object) -> None:
        if message.id == "b" and handlers.started.count("b") == 1:
            raise failing("no stock")

    class NamedHandlers(ScriptedHandlers):
        def path_of(self, message: Message) -> str:
            """Return a name."""
            return f"shop.{message.type}"

    handlers = NamedHandlers(script)
    simulated = await SimulatedEndpoint(handlers).open("b")
    await simulated.work(also=[Logs()])
    runs = [vars(record) for record in entries(caplog) if record.levelname == "DEBUG"]
    assert [(run["event"], run["message_id"], run["type"], run.get("reason")) for run in runs] == [
        ("handler failed", "b", "order", "no stock"),
        ("handler succeeded", "b", "order", None),
    ]
    assert all(run["milliseconds"] >= 0 for run in runs)
    assert [run["handler"] for run in runs] == ["shop.order"] * 2


async def test_the_first_failure_has_its_traceback_and_each_with_a_new_reason(caplog: pytest.LogCaptureFixture) -> None:
    """Five failures with two reasons: the traceback is there twice, and again in the dead letter."""

    def script(_message: Message, _resources: object) -> None:
        raise failing("no stock" if len(handlers.started) <= 3 else "no money")

    handlers = ScriptedHandlers(script, Retry(immediate=4, delayed=0))
    simulated = await SimulatedEndpoint(handlers).open("a")
    await simulated.work(also=[Logs()])
    traces = [vars(record).get("traceback", "") for record in entries(caplog)]
    stock, money = "Traceback of no stock", "Traceback of no money"
    assert traces == [stock, "", "", money, money]
    assert KeyValues().format(entries(caplog)[0]).endswith(f"\n{stock}")


async def test_a_retry_is_a_warning_and_a_dead_letter_an_error(caplog: pytest.LogCaptureFixture) -> None:
    """With the reason, the attempt, who it is, and the traceback at the end."""

    def script(_message: Message, _resources: object) -> None:
        raise failing("no stock")

    simulated = await SimulatedEndpoint(ScriptedHandlers(script, Retry(immediate=1, delayed=0))).open("a")
    await simulated.work(also=[Logs()])
    warning, error = entries(caplog)
    assert (warning.levelname, error.levelname) == ("WARNING", "ERROR")
    fields = json.loads(JsonLines().format(error))
    expected = {"endpoint": "shop", "message_id": "a", "source": "test", "attempt": 2, "reason": "no stock"}
    assert expected.items() <= fields.items()
    assert fields["traceback"] == "Traceback of no stock"
    assert {**expected, "attempt": 1}.items() <= json.loads(JsonLines().format(warning)).items()


async def test_one_id_with_two_bodies_is_an_alarm(caplog: pytest.LogCaptureFixture) -> None:
    """Some sender re-uses ids: messages would be lost silently."""
    simulated = await SimulatedEndpoint().open("a")
    other = Message(id="a", source="test", type="order", body=b'{"other": 1}')
    await simulated.transport.send([Send(message=other, to="shop")])
    await simulated.work(also=[Logs()])
    (alarm,) = entries(caplog)
    assert alarm.levelname == "CRITICAL"
    assert "reused with another body" in event_in(alarm)
    assert "handler" not in vars(alarm)  # none ran: an empty field is left out
    assert '=""' not in alarm.getMessage()


async def test_an_outage_is_said_once_and_its_end_once(caplog: pytest.LogCaptureFixture) -> None:
    """Ten failing calls, two lines."""
    caplog.set_level("INFO")
    logs = Logs()
    for _ in range(10):
        with pytest.raises(OutcomeUnknown):
            async with logs.around(PortCall(Point.BEGIN, "shop")):
                raise OutcomeUnknown("connection refused")
    for _ in range(2):
        async with logs.around(PortCall(Point.BEGIN, "shop")):
            pass
    assert events(entries(caplog)) == ["call failing", "call recovered"]
    assert (
        KeyValues()
        .format(entries(caplog)[0])
        .endswith('call failing endpoint=shop call=begin reason="OutcomeUnknown: connection refused"')
    )


async def test_what_is_left_to_a_newer_version_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """However often it comes, and whatever works in between; and it hides no outage."""
    caplog.set_level("INFO")
    logs = Logs()
    for error in (
        UpgradeRequired("document 'entity/a' ..."),
        UpgradeRequired("document 'entity/b' ..."),
        OutcomeUnknown("cut"),
    ):
        for _ in range(3):
            async with logs.around(PortCall(Point.BEGIN, "shop")):
                pass
            with pytest.raises(RetryableError):
                async with logs.around(PortCall(Point.BEGIN, "shop")):
                    raise error
            if error.args == ("cut",):
                break
    first, outage = entries(caplog)
    assert (first.levelname, "newer version" in event_in(first)) == ("WARNING", True)
    assert "entity/a" in vars(first)["reason"]
    assert event_in(outage) == "call failing"


async def test_being_put_off_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    """RetryLater is said, but not as a warning."""
    caplog.set_level("INFO")

    def script(_message: Message, _resources: object) -> None:
        if handlers.started.count("a") == 1:
            raise failing("later", FailureKind.LATER)

    handlers = ScriptedHandlers(script)
    simulated = await SimulatedEndpoint(handlers).open("a")
    await simulated.work(also=[Logs()])
    assert [(record.levelname, event_in(record)) for record in entries(caplog)] == [
        ("INFO", "message postponed, not counted as a failure")
    ]


async def test_a_message_that_once_waited_for_its_bucket_may_be_put_off_by_its_handler(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What its latest unit found is what counts: the copy of an earlier one was perhaps not taken."""
    caplog.set_level("INFO")
    logs, message = Logs(), Message(id="a", source="test", type="order", body=b"{}")
    for undecidable in ((UndecidableMessage(message, Undecidable.SLOT_NOT_READY),), ()):
        call = PortCall(Point.BEGIN, "shop", (message,))
        async with logs.around(call):
            call.result = SimpleNamespace(found=BeginResult(undecidable=tuple(undecidable)))
    copied = PortCall(Point.RETRY_COPY, "shop", (Send(message=message, to="shop", due=1),))
    async with logs.around(copied):
        copied.result = (Answer.TAKEN,)
    assert events(entries(caplog)) == ["message postponed, not counted as a failure"]


KILLED = Failure(kind=FailureKind.KILLED, reason="the process ended")


def left_behind(number: int, *history: Failure, due: int = 0) -> Send:
    """Make the copy of a message whose process died."""
    message = Message(id=f"m{number}", source="test", type="order", body=b"{}")
    return Send(message=message, to="shop", due=due, history=history, attempts=len(history), alone=True)


async def retried(*sends: Send) -> None:
    """Let the observer see that these copies were taken."""
    call = PortCall(Point.RETRY_COPY, "shop", sends)
    async with Logs().around(call):
        call.result = (Answer.TAKEN,) * len(sends)


async def test_what_a_process_left_behind_is_named_or_counted(caplog: pytest.LogCaptureFixture) -> None:
    """Three messages have a line each, two hundred have one together; another failure in the batch is still named."""
    await retried(left_behind(1), left_behind(2, KILLED))
    assert {event_in(record) for record in entries(caplog)} == {"message interrupted, will be retried"}
    assert [vars(record)["message_id"] for record in entries(caplog)] == ["m1", "m2"]
    caplog.clear()
    other = left_behind(0, Failure(kind=FailureKind.EXCEPTION, reason="odd"))
    await retried(other, *(left_behind(number) for number in range(200)))
    assert [(record.levelname, event_in(record)) for record in entries(caplog)] == [
        ("WARNING", "messages interrupted, will be retried"),
        ("WARNING", "message failed, will be retried"),
    ]


async def test_people_read_dates_and_programs_numbers(caplog: pytest.LogCaptureFixture) -> None:
    """The instant of the next try, in either format."""
    await retried(left_behind(1, KILLED, due=1_700_000_000_250), left_behind(2))
    first, second = entries(caplog)
    assert " due=2023-11-14T22:13:20.250+00:00" in KeyValues().format(first)
    assert json.loads(JsonLines().format(first))["due"] == 1_700_000_000_250
    assert " due=now" in KeyValues().format(second)


def test_an_exception_is_part_of_the_json_line() -> None:
    """One entry stays one line, with the traceback in a field."""
    error = ValueError("odd")
    record = logging.getLogger("onceonly").makeRecord("onceonly", 40, __file__, 1, "it broke", (), (ValueError, error, None))
    line = JsonLines().format(record)
    assert "\n" not in line
    assert "ValueError: odd" in json.loads(line)["traceback"]
    assert KeyValues().format(record).splitlines()[-1] == "ValueError: odd"


def test_logs_go_to_standard_error_only(capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output is for answers."""
    with logging_restored():
        logging.getLogger().handlers.clear()  # basicConfig(force) would close what pytest still uses
        log_to_stderr(json_lines=True, level="warning")
        logging.getLogger("onceonly").warning("odd", extra={"endpoint": "shop"})
        logging.getLogger("onceonly").info("usual")
    out, err = capsys.readouterr()
    assert out == ""
    assert [json.loads(line)["endpoint"] for line in err.splitlines()] == ["shop"]


@pytest.mark.parametrize("name", ["azure.core.pipeline.policies.http_logging_policy", "httpx"])
@pytest.mark.parametrize(("level", "told"), [("INFO", 0), ("DEBUG", 2)])
def test_a_driver_that_tells_of_every_request_does_not_flood_the_log(
    capsys: pytest.CaptureFixture[str], name: str, level: str, told: int
) -> None:
    """Two requests of a driver at INFO are no lines, unless somebody asked for DEBUG; its warnings are."""
    driver = logging.getLogger(name)
    with logging_restored():
        log_to_stderr(json_lines=True, level=level)
        driver.info("Request URL")
        driver.info("Response status")
        driver.warning("odd")
    assert len(capsys.readouterr().err.splitlines()) == told + 1


@pytest.mark.parametrize("formatter", [JsonLines(), KeyValues()])
def test_hostile_characters_reach_no_log(formatter: logging.Formatter) -> None:
    """Escapes in the message, in fields, in tracebacks: the terminal of the person who reads the log obeys none of them."""
    hostile = "\x1b[2J\x7f\x9b\u200e\u202e\u2066\ud800"
    record = logging.LogRecord("onceonly", logging.ERROR, "here", 1, "odd %s", (hostile,), None)
    vars(record).update(message_id=hostile, reason=f"a b {hostile}", traceback=f"Traceback\nValueError: {hostile}")
    line = formatter.format(record)
    assert not {*line} & {*hostile} - {*"[2J"}
    line.encode()
