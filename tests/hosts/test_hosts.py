"""Each host under kills: with onceonly nothing is lost or doubled, and without it something is."""

import ast
from dataclasses import replace
from difflib import ndiff

import pytest

from examples.hosts.aio_pika_loop.__main__ import HOST as AIO_PIKA_LOOP
from examples.hosts.aiokafka_loop.__main__ import HOST as AIOKAFKA_LOOP
from examples.hosts.arq_redis.__main__ import HOST as ARQ
from examples.hosts.aws_lambda.__main__ import HOSTS as AWS_LAMBDA
from examples.hosts.confluent_loop.__main__ import HOST as CONFLUENT_LOOP
from examples.hosts.django_worker.__main__ import HOST as DJANGO_WORKER
from examples.hosts.dramatiq_rabbitmq.__main__ import HOST as DRAMATIQ
from examples.hosts.faststream_kafka.__main__ import HOST as FASTSTREAM_KAFKA
from examples.hosts.faststream_nats.__main__ import HOST as FASTSTREAM_NATS
from examples.hosts.faststream_rabbitmq.__main__ import HOST as FASTSTREAM_RABBITMQ
from examples.hosts.faststream_redis.__main__ import HOST as FASTSTREAM_REDIS
from examples.hosts.flask_gunicorn.__main__ import HOSTS as FLASK_GUNICORN
from examples.hosts.harness import ROOT, Counts, Host, Places, misplaced, run
from examples.hosts.nats_loop.__main__ import HOST as NATS_LOOP
from examples.hosts.program import ACCOUNTS
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
        (DJANGO_WORKER, RABBITMQ),
        (NATS_LOOP, NATS),
        (REDIS_LOOP, REDIS),
        (SQS_LOOP, "ministack_endpoint"),
        *((host, "ministack_endpoint") for host in AWS_LAMBDA.values()),
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

MOST_KILLED = dict.fromkeys(AWS_LAMBDA, 10)
"""Kills of a host, if not 8."""
IN_CI = {"faststream_rabbitmq", "django_worker", "flask_gunicorn_sync"}
"""A host that brings messages, a worker on Django's ORM, and a host that serves requests. Functions are under kills in
`test_azure_functions`, in the same loop of `hosted`, and Celery and views of Django have files of their own."""
UNDER_KILLS = [pytest.param(name, marks=() if name in IN_CI else pytest.mark.repeated) for name in HOSTS]


def places(name: str, request: pytest.FixtureRequest) -> tuple[Host, Places]:
    """Return a host and where it runs; skips the test without its servers."""
    host, server = HOSTS[name]
    postgresql = need(POSTGRESQL) if host.books is None or host is DJANGO_WORKER else ""
    return host, Places(postgresql, request.getfixturevalue(server) if isinstance(server, str) else need(server))


def note(name: str, counts: Counts) -> None:
    """Print the numbers of a run at the end of the session."""
    MEASURED.append(
        f"{name}, {counts.program}: {counts.kills} kills, {counts.ids} ids, {counts.rows} rows, {counts.rows_lost} lost,"
        f" {counts.rows_doubled} doubled; {counts.events} events, {counts.events_lost} lost, {counts.repeated} repeated on the"
        f" wire, {counts.by_id_doubled} doubled by id; {counts.seconds:g} s"
        + ("" if counts.misplaced is None else f"; {counts.misplaced} out of order")
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
    assert counts.rows == counts.ids, counts
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


@pytest.mark.slow
@pytest.mark.timeout(400)  # longer than the harness waits
async def test_a_function_that_does_not_stop_a_group_breaks_its_order(ministack_endpoint: str) -> None:
    """So the order of the groups above can fail. Nothing is lost or doubled."""
    host = AWS_LAMBDA["aws_lambda_dynamodb_fifo"]
    command = [*host.exactly_once[:-2], "tests.hosts.lambda_without_groups", ".fifo"]
    counts = await run(replace(host, exactly_once=command), Places("", ministack_endpoint), is_control=False, ids=40, kills=0)
    note(host.name, counts._replace(program="without groups"))
    assert counts.misplaced, counts
    assert counts._replace(misplaced=0).is_exact, counts


def test_what_is_out_of_order_is_counted() -> None:
    """By account. A copy later is none."""
    assert misplaced(["order-0", "order-1", f"order-{ACCOUNTS}", "order-1", "order-0"]) == 0
    assert misplaced([f"order-{ACCOUNTS}", "order-1", "order-0", f"order-{2 * ACCOUNTS}"]) == 1


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
