"""Each host under kills: with onceonly nothing is lost or doubled, and without it something is."""

import ast
from difflib import ndiff

import pytest

from examples.hosts.aio_pika_loop.__main__ import HOST as AIO_PIKA_LOOP
from examples.hosts.aiokafka_loop.__main__ import HOST as AIOKAFKA_LOOP
from examples.hosts.arq_redis.__main__ import HOST as ARQ
from examples.hosts.aws_lambda.__main__ import HOST as AWS_LAMBDA
from examples.hosts.confluent_loop.__main__ import HOST as CONFLUENT_LOOP
from examples.hosts.dramatiq_rabbitmq.__main__ import HOST as DRAMATIQ
from examples.hosts.faststream_kafka.__main__ import HOST as FASTSTREAM_KAFKA
from examples.hosts.faststream_nats.__main__ import HOST as FASTSTREAM_NATS
from examples.hosts.faststream_rabbitmq.__main__ import HOST as FASTSTREAM_RABBITMQ
from examples.hosts.faststream_redis.__main__ import HOST as FASTSTREAM_REDIS
from examples.hosts.flask_gunicorn.__main__ import HOSTS as FLASK_GUNICORN
from examples.hosts.harness import ROOT, Counts, Host, Places, run
from examples.hosts.nats_loop.__main__ import HOST as NATS_LOOP
from examples.hosts.redis_loop.__main__ import HOST as REDIS_LOOP
from examples.hosts.sqs_loop.__main__ import HOST as SQS_LOOP
from examples.hosts.taskiq_rabbitmq.__main__ import HOST as TASKIQ
from tests.servers.available import MEASURED, NATS, POSTGRESQL, RABBITMQ, REDIS, Server, need

HOSTS: dict[str, tuple[Host, Server | str]] = {
    host.name: (host, server)
    for host, server in (
        (FASTSTREAM_RABBITMQ, RABBITMQ),
        (FASTSTREAM_NATS, NATS),
        (FASTSTREAM_REDIS, REDIS),
        (FASTSTREAM_KAFKA, "kafka_url"),
        (AIOKAFKA_LOOP, "kafka_url"),
        (CONFLUENT_LOOP, "kafka_url"),
        (AIO_PIKA_LOOP, RABBITMQ),
        (NATS_LOOP, NATS),
        (REDIS_LOOP, REDIS),
        (SQS_LOOP, "ministack_endpoint"),
        (AWS_LAMBDA, "ministack_endpoint"),
        (DRAMATIQ, RABBITMQ),
        (ARQ, REDIS),
        (TASKIQ, RABBITMQ),
        *((host, RABBITMQ) for host in FLASK_GUNICORN.values()),
    )
}
"""Each host with its server, or with the fixture that runs an emulator and gives its URL."""
MOST_LINES = {"faststream_kafka": 7, "faststream_rabbitmq": 7, "faststream_nats": 7, "faststream_redis": 7, "flask_gunicorn": 8}
"""Lines of an application that are new or changed: six, and one for the handler, which opened a session of its own.

In Flask four are for the application, and four for the view.
"""

MOST_KILLED = {"aws_lambda": 10}
"""Kills of a host, if not 8."""
ONE_OF_EACH = {"faststream_rabbitmq", "aio_pika_loop", "flask_gunicorn_sync", "dramatiq_rabbitmq", "aws_lambda"}
"""A host for each way to be exactly once: a transaction of its own, `hosted`, a function, `enlist` in a request, in a task."""
UNDER_KILLS = [pytest.param(name, marks=() if name in ONE_OF_EACH else pytest.mark.repeated) for name in HOSTS]


def places(name: str, request: pytest.FixtureRequest) -> tuple[Host, Places]:
    """Return a host and where it runs; skips the test without its servers."""
    host, server = HOSTS[name]
    return host, Places(need(POSTGRESQL), request.getfixturevalue(server) if isinstance(server, str) else need(server))


def note(name: str, counts: Counts) -> None:
    """Print the numbers of a run at the end of the session."""
    MEASURED.append(
        f"{name}, {counts.program}: {counts.kills} kills, {counts.ids} ids, {counts.rows} rows, {counts.rows_lost} lost,"
        f" {counts.rows_doubled} doubled; {counts.events} events, {counts.events_lost} lost, {counts.repeated} repeated on the"
        f" wire, {counts.by_id_doubled} doubled by id; {counts.seconds:g} s"
    )


@pytest.mark.slow
@pytest.mark.timeout(400)  # longer than the harness waits
@pytest.mark.parametrize("name", UNDER_KILLS)
async def test_nothing_is_lost_or_doubled_when_the_application_is_killed_again_and_again(
    name: str, request: pytest.FixtureRequest
) -> None:
    """A fifth of the messages came twice."""
    host, where = places(name, request)
    kills = MOST_KILLED.get(name, 8)
    counts = await run(host, where, is_control=False, ids=72, kills=kills)
    note(name, counts)
    assert counts.kills == kills
    assert counts.is_exact, counts


@pytest.mark.slow
@pytest.mark.timeout(400)  # longer than the harness waits
@pytest.mark.parametrize("name", UNDER_KILLS)
async def test_the_same_application_without_onceonly_loses_or_doubles(name: str, request: pytest.FixtureRequest) -> None:
    """So the run above can fail."""
    host, where = places(name, request)
    counts = await run(host, where, is_control=True, ids=30, kills=2)
    note(name, counts)
    assert counts.rows_lost or counts.rows_doubled or counts.events_lost, counts
    assert not counts.is_exact


@pytest.mark.parametrize("name", MOST_LINES)
def test_an_application_changes_in_a_few_lines(name: str) -> None:
    """Lines that are new or changed count, whatever their indentation; removed ones do not."""
    folder = ROOT / "examples" / "hosts" / name
    before, after = ((folder / file).read_text().splitlines()[1:] for file in ("control.py", "exactly_once.py"))
    stripped = [[line.strip() for line in lines if line.strip()] for lines in (before, after)]
    changed = [line for line in ndiff(*stripped) if line.startswith("+")]
    assert len(changed) <= MOST_LINES[name], "\n".join(changed)


@pytest.mark.parametrize("name", ["dramatiq_rabbitmq", "arq_redis", "taskiq_rabbitmq"])
def test_a_task_changes_in_three_lines(name: str) -> None:
    """In its body. The set-up of the process is there once."""
    folder = ROOT / "examples" / "hosts" / name
    before, after = (body_of((folder / file).read_text(), "place_order") for file in ("control.py", "exactly_once.py"))
    changed = [line for line in ndiff(before, after) if line.startswith("+")]
    assert 0 < len(changed) <= 3, "\n".join(changed)


def body_of(source: str, name: str) -> list[str]:
    """Return the lines of a function's body, without indentation."""
    found = next(node for node in ast.walk(ast.parse(source)) if getattr(node, "name", "") == name)
    assert isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef)
    return [line.strip() for line in source.splitlines()[found.body[0].lineno - 1 : found.end_lineno]]
