"""Every row of the table: what it is called, what it runs, what it needs. Nothing here imports a competitor."""

from importlib.util import find_spec

from msgspec import Struct

from benchmarks.programs import C_LIBRARIES, GRAPHILE_WORKER, is_installed

RABBITMQ, POSTGRESQL, SQLITE = "PostgreSQL + RabbitMQ", "PostgreSQL alone", "SQLite alone"
MARIADB = "MariaDB + RabbitMQ"

ECHO = "batches:echo"

POOLS = (8, 32, 64)
BATCHES = (1, 2)


class BenchmarkRow(Struct, frozen=True, kw_only=True):
    """One row: `work` is `module:function` below `benchmarks.rows`; `messages` is the most of them in a round.

    `needs` are packages of Python, `programs` are programs that are not Python. `concurrencies` are tried once, and the best is
    measured. `quorum` rows read from a quorum queue, as onceonly does.
    """

    name: str
    title: str
    backend: str = RABBITMQ
    work: str
    messages: int
    needs: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    concurrencies: tuple[int, ...] = (1,)
    quorum: bool = False
    about: str

    @property
    def module(self) -> str:
        """Name the module below `benchmarks.rows`."""
        return self.work.partition(":")[0]

    @property
    def is_echo(self) -> bool:
        """Tell whether it publishes what it consumes, and writes no row."""
        return self.work.endswith(":echo")

    @property
    def reads_quorum(self) -> bool:
        """Tell whether its input queue on RabbitMQ is the quorum queue that onceonly declares."""
        return self.quorum or self.is_own

    @property
    def is_own(self) -> bool:
        """Tell whether this is onceonly itself."""
        return self.module == "onceonly"

    def missing(self) -> tuple[str, ...]:
        """List the packages and programs it needs that are not installed."""
        packages = (package for package in self.needs if find_spec(package) is None)
        return (*packages, *(program for program in self.programs if not is_installed(program)))


_NAMES = {"on_its_queue": "onceonly_sql_queue", "on_sqlite": "onceonly_sqlite", "orm_on_mariadb": "onceonly_orm_mariadb"}


def _own(
    name: str, title: str, about: str, *, messages: int = 12000, backend: str = RABBITMQ, batches: int = 2
) -> BenchmarkRow:
    work = f"onceonly:{name}"
    own_name = name if backend != RABBITMQ else f"onceonly_{name}"
    return BenchmarkRow(
        name=_NAMES.get(name, own_name),
        title=title,
        backend=backend,
        work=work,
        messages=messages,
        concurrencies=BATCHES[:batches],
        about=about,
    )


_FASTSTREAM = ("faststream", "pydantic")

ROWS: tuple[BenchmarkRow, ...] = (
    _own("orm", "onceonly, ORM handler", "exactly-once; a handler adds one object to an AsyncSession"),
    _own("orm_psycopg", "onceonly, ORM handler, psycopg", "the same by psycopg instead of asyncpg"),
    _own("core", "onceonly, SQLAlchemy Core handler", "exactly-once; a handler executes one INSERT on its AsyncConnection"),
    _own(
        "raw",
        "onceonly, raw handler",
        "exactly-once; a handler executes one INSERT on asyncpg's connection, through the unit's",
    ),
    _own(
        "batch",
        "onceonly, batch handler",
        "exactly-once; a handler takes the batch and executes one multi-row INSERT on asyncpg's connection",
        messages=16000,
    ),
    _own(
        "core_batch",
        "onceonly, batch handler, SQLAlchemy Core",
        "the same on its AsyncConnection, by a list of parameters",
        messages=16000,
    ),
    _own("entities", "onceonly, entity handler", "exactly-once; a handler changes an entity of its message's own"),
    _own("off", "onceonly, Off()", "at-least-once: the ORM handler without deduplication"),
    BenchmarkRow(
        name="batched_plain_orm",
        title="by hand: batches, ORM",
        work="batches:plain_orm",
        messages=16000,
        about="at-least-once; batches of 100, one session and one flush each, no claims, no records",
    ),
    BenchmarkRow(
        name="batched_plain_raw",
        title="by hand: batches, asyncpg",
        work="batches:plain_raw",
        messages=16000,
        about="at-least-once; batches of 100, one INSERT for a message, no claims, no records",
    ),
    BenchmarkRow(
        name="floor_orm",
        title="by hand: exactly-once floor, ORM",
        work="batches:floor_orm",
        messages=12000,
        about="exactly-once by hand at its least: claims and records in the batch's transaction; no retries, no relay",
    ),
    BenchmarkRow(
        name="floor_raw",
        title="by hand: exactly-once floor, asyncpg",
        work="batches:floor_raw",
        messages=16000,
        about="the same, one INSERT for a message",
    ),
    BenchmarkRow(
        name="floor_orm_psycopg",
        title="by hand: exactly-once floor, ORM, psycopg",
        work="batches:floor_orm_psycopg",
        messages=12000,
        about="the floor with the ORM, by psycopg",
    ),
    _own("orm_on_mariadb", "onceonly, ORM handler, MariaDB", "exactly-once; the ORM handler on MariaDB", backend=MARIADB),
    BenchmarkRow(
        name="floor_orm_mariadb",
        title="by hand: exactly-once floor, ORM, MariaDB",
        backend=MARIADB,
        work="batches:floor_orm_mariadb",
        messages=12000,
        about="exactly-once by hand at its least, on MariaDB",
    ),
    BenchmarkRow(
        name="floor_core",
        title="by hand: exactly-once floor, SQLAlchemy Core",
        work="batches:floor_core",
        messages=12000,
        about="the floor with one INSERT for a message through SQLAlchemy without the ORM",
    ),
    BenchmarkRow(
        name="floor_orm_quorum",
        title="by hand: the floor on a quorum queue, ORM",
        work="batches:floor_orm",
        messages=12000,
        quorum=True,
        about="the floor with the ORM, reading from a quorum queue as onceonly does",
    ),
    BenchmarkRow(
        name="floor_raw_quorum",
        title="by hand: the floor on a quorum queue, asyncpg",
        work="batches:floor_raw",
        messages=16000,
        quorum=True,
        about="the same, one INSERT for a message",
    ),
    BenchmarkRow(
        name="at_least_once_orm",
        title="FastStream, at-least-once, ORM",
        work="faststream:plain_orm",
        messages=4000,
        needs=_FASTSTREAM,
        concurrencies=POOLS,
        about="at-least-once; a session and a commit for each message, then the publish",
    ),
    BenchmarkRow(
        name="at_least_once_raw",
        title="FastStream, at-least-once, asyncpg",
        work="faststream:plain_raw",
        messages=8000,
        needs=_FASTSTREAM,
        concurrencies=POOLS,
        about="the same by asyncpg",
    ),
    BenchmarkRow(
        name="outbox_orm",
        title="FastStream + hand-written outbox, ORM",
        work="faststream:outbox_orm",
        messages=2000,
        needs=_FASTSTREAM,
        concurrencies=POOLS,
        about="row and outbox row in one transaction, the publish, then a mark in a second one",
    ),
    BenchmarkRow(
        name="outbox_orm_quorum",
        title="FastStream + hand-written outbox, ORM, quorum queue",
        work="faststream:outbox_orm",
        messages=2000,
        needs=_FASTSTREAM,
        concurrencies=POOLS,
        quorum=True,
        about="the hand-written outbox with the ORM, reading from a quorum queue as onceonly does",
    ),
    BenchmarkRow(
        name="outbox_raw",
        title="FastStream + hand-written outbox, asyncpg",
        work="faststream:outbox_raw",
        messages=4000,
        needs=_FASTSTREAM,
        concurrencies=POOLS,
        about="the same by asyncpg",
    ),
    BenchmarkRow(
        name="faststream_outbox",
        title="faststream-outbox",
        work="faststream_outbox:relay",
        messages=2000,
        needs=(*_FASTSTREAM, "faststream_outbox"),
        concurrencies=POOLS,
        about="FastStream consumes, row and outbox row in one transaction, the package's relay publishes",
    ),
    BenchmarkRow(
        name="dbos",
        title="DBOS",
        work="dbos:on_rabbitmq",
        messages=600,
        needs=("dbos",),
        concurrencies=POOLS,
        about="a durable workflow under the message's id, acknowledged once started; the row in a datasource transaction",
    ),
    BenchmarkRow(
        name="procrastinate",
        title="Procrastinate",
        work="procrastinate:on_rabbitmq",
        messages=1500,
        needs=("faststream", "procrastinate", "psycopg_pool"),
        concurrencies=POOLS,
        about="FastStream consumes, row and job in one transaction, its worker publishes",
    ),
    BenchmarkRow(
        name="c_floor",
        title="limit: C floor",
        work="limit:floor",
        messages=40000,
        programs=(C_LIBRARIES,),
        quorum=True,
        about="the floor in C, on a quorum queue: librabbitmq, libpq, one INSERT for a batch's rows and one for its claims",
    ),
    BenchmarkRow(
        name="c_echo",
        title="limit: C echo, no database",
        work="limit:echo",
        messages=60000,
        programs=(C_LIBRARIES,),
        quorum=True,
        about="the same program, which only publishes what it consumes: what RabbitMQ can do here",
    ),
    BenchmarkRow(
        name="driver_echo",
        title="Python driver's echo, no database",
        work=ECHO,
        messages=20000,
        about="what was consumed is published: what aiormq can do here, and no limit of RabbitMQ",
    ),
    BenchmarkRow(
        name="driver_echo_quorum",
        title="Python driver's echo from a quorum queue",
        work=ECHO,
        messages=20000,
        quorum=True,
        about="the driver's echo, reading from a quorum queue as onceonly does",
    ),
    _own(
        "on_its_queue",
        "onceonly, SQL queue",
        "exactly-once; the queue in the same PostgreSQL, ORM handler",
        messages=8000,
        backend=POSTGRESQL,
    ),
    BenchmarkRow(
        name="graphile_worker",
        title="graphile-worker, its queue",
        backend=POSTGRESQL,
        work="graphile:on_its_queue",
        messages=8000,
        programs=(GRAPHILE_WORKER,),
        concurrencies=POOLS,
        about="Node.js, with its local queue; a job writes the row and adds the next job in one transaction",
    ),
    BenchmarkRow(
        name="procrastinate_queue",
        title="Procrastinate, its queue",
        backend=POSTGRESQL,
        work="procrastinate:on_its_queue",
        messages=1500,
        needs=("faststream", "procrastinate", "psycopg_pool"),
        concurrencies=POOLS,
        about="a job writes the row and defers the next job in one transaction",
    ),
    BenchmarkRow(
        name="dbos_queue",
        title="DBOS, its queue",
        backend=POSTGRESQL,
        work="dbos:on_its_queue",
        messages=600,
        needs=("dbos",),
        concurrencies=POOLS,
        about="a workflow writes the row in a datasource transaction and enqueues the next workflow",
    ),
    _own(
        "on_sqlite",
        "onceonly, SQLite",
        "exactly-once; store and queue in two SQLite files, ORM handler",
        messages=8000,
        backend=SQLITE,
        batches=1,
    ),
    BenchmarkRow(
        name="huey_sqlite",
        title="Huey, SQLite",
        backend=SQLITE,
        work="huey:on_sqlite",
        messages=1500,
        needs=("huey",),
        concurrencies=(1, 2, 4),
        about="SqliteHuey with fsync, threads; a task writes the row, commits, and enqueues the next task",
    ),
)

BY_NAME = {row.name: row for row in ROWS}
