"""The guide for Celery: its programs run, with a worker that is started by its commands."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from uuid import uuid4

import pytest
from kombu import Connection
from sqlalchemy import create_engine, make_url, text

from tests.docs.test_documentation import DOCS, shell, snippet
from tests.servers.available import POSTGRESQL, RABBITMQ, need, postgresql_database

GUIDE = DOCS / "how-to" / "celery.md"
PROGRAMS = ("tasks.py", "keyed_tasks.py", "views.py", "beat.py")
PATIENCE = 30.0


class Guide:
    """A folder with the programs of the guide, on a database and a queue of its own."""

    def __init__(self, folder: Path, store: str) -> None:
        self.folder, self.queue = folder, f"celery-{uuid4().hex[:8]}"
        driver = make_url(store).set(drivername="postgresql+psycopg").render_as_string(hide_password=False)
        for name in PROGRAMS:
            program = snippet(GUIDE, f"# {name}").replace("amqp://localhost", need(RABBITMQ))
            program = program.replace("postgresql+psycopg://localhost/billing", driver)
            (folder / name).write_text(program.replace("postgresql://localhost/billing", store))
        with (folder / "tasks.py").open("a") as tasks:
            tasks.write(f'app.conf.update(task_default_queue="{self.queue}", worker_enable_remote_control=False)\n')
        self.engine = create_engine(driver)

    def create(self) -> None:
        """Create all tables."""
        create, _ = re.findall(r"```sh\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)[0].splitlines()
        shell(self.folder, create)
        self.run("import tasks; tasks.Base.metadata.create_all(tasks.sessions.kw['bind'])")

    def run(self, program: str) -> str:
        """Run a program in the folder."""
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=self.folder, capture_output=True, text=True, check=True, timeout=60
        )
        return done.stdout

    def invoices(self) -> list[str]:
        """Return the rows."""
        with self.engine.connect() as connection:
            found = connection.execute(text("SELECT order_id, state FROM invoices ORDER BY number")).all()
        return [f"{order_id} {state}" for order_id, state in found]

    def wait_for(self, count: int) -> None:
        """Wait for this number of rows."""
        end = monotonic() + PATIENCE
        while len(self.invoices()) < count:
            assert monotonic() < end, (self.invoices(), (self.folder / "log").read_text())
            sleep(0.1)

    def remove(self) -> None:
        """Remove the queue."""
        with Connection(need(RABBITMQ)) as connection:
            channel = connection.channel()
            channel.queue_delete(self.queue)
            channel.exchange_delete(self.queue)
        self.engine.dispose()


@pytest.fixture
def guide(tmp_path: Path) -> Iterator[Guide]:
    """Write the programs."""
    need(POSTGRESQL)
    with postgresql_database() as store:
        found = Guide(tmp_path, store)
        yield found
        found.remove()


@pytest.mark.slow
def test_the_programs_of_the_guide_run(guide: Guide) -> None:
    """A view, a task with its follow-up task, the same id twice, and a key of the arguments twice."""
    guide.create()
    _, start = re.findall(r"```sh\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)[0].splitlines()
    command = [sys.executable, "-m", *start.replace("-A tasks", "-A keyed_tasks.app").split(), "--concurrency=2"]
    log = (guide.folder / "log").open("wb")
    worker = subprocess.Popen(command, cwd=guide.folder, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": "."})
    try:
        guide.run("import views; views.place_order('A-1')")
        guide.run(
            "import keyed_tasks, tasks\n"
            "for _ in range(2): tasks.send_invoice.apply_async(('A-2',), task_id='invoice-A-2')\n"
            "for _ in range(2): keyed_tasks.cancel_invoice.delay('A-3')\n"
        )
        guide.wait_for(6)
        guide.run("import tasks; tasks.send_invoice.delay('A-4')")
        guide.wait_for(8)
    finally:
        worker.terminate()
        worker.wait(30)
        log.close()
    wanted = ["A-1 ordered", "A-1 printed", "A-1 sent", "A-2 printed", "A-2 sent", "A-3 cancelled", "A-4 printed", "A-4 sent"]
    assert sorted(guide.invoices()) == wanted


def test_beat_of_the_guide_has_the_scheduler(guide: Guide) -> None:
    """With the id that the guide shows."""
    found = guide.run("import beat; print(beat.app.Beat().scheduler_cls, *beat.app.conf.beat_schedule)")
    assert found.split() == ["onceonly.integrations.celery:ExactlyOnceScheduler", "remind"]
