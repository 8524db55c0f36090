"""Orders with Dramatiq on RabbitMQ: each order is a row, committed first, and a task to announce it, sent then."""

import signal
from threading import Event

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from sqlalchemy import create_engine, make_url
from sqlalchemy.orm import sessionmaker

from examples.hosts.program import BROKER, ORDERS, PLACED, STORE, Order, report

broker = RabbitmqBroker(url=BROKER)
dramatiq.set_broker(broker)
sessions = sessionmaker(create_engine(make_url(STORE).set(drivername="postgresql+psycopg")))


@dramatiq.actor(queue_name=ORDERS)
def place_order(order_id: str) -> None:
    """Write the row, and have it announced."""
    with sessions.begin() as session:
        session.add(Order(order_id=order_id))
    report(order_id)
    announce.send(order_id)


@dramatiq.actor(queue_name=PLACED)
def announce(order_id: str) -> None:
    """Run in the workers of another service."""


def main() -> None:
    """Run a worker with four threads, as a process of Dramatiq's command line does."""
    stop = Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    worker = dramatiq.Worker(broker, queues={ORDERS}, worker_threads=4)
    worker.start()
    stop.wait()
    worker.stop()
