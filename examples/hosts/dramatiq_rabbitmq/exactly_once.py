"""Orders with Dramatiq on RabbitMQ, exactly once: the row and the task are in one commit, with the task's id as key."""

import signal
from threading import Event
from typing import Any

import dramatiq
from dramatiq.asyncio import async_to_sync
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.middleware import CurrentMessage
from dramatiq.middleware.asyncio import AsyncIO
from sqlalchemy import create_engine, make_url
from sqlalchemy.orm import sessionmaker

from examples.hosts.program import BROKER, ORDERS, PLACED, STORE, Order, report
from onceonly import Endpoint, Queue

shop = Endpoint("shop", store=STORE, transport=BROKER)


class Sending(AsyncIO):
    """Sends what was committed, in the event loop that Dramatiq runs in each worker process."""

    def before_worker_boot(self, broker: Any, worker: Any) -> None:
        """Start to send."""
        super().before_worker_boot(broker, worker)
        self.sending = shop.sending()
        async_to_sync(self.sending.__aenter__)()

    def after_worker_shutdown(self, broker: Any, worker: Any) -> None:
        """Stop."""
        async_to_sync(self.sending.__aexit__)(None, None, None)
        super().after_worker_shutdown(broker, worker)


broker = RabbitmqBroker(url=BROKER)
broker.add_middleware(CurrentMessage())
broker.add_middleware(Sending())
dramatiq.set_broker(broker)
sessions = sessionmaker(create_engine(make_url(STORE).set(drivername="postgresql+psycopg")))


@dramatiq.actor(queue_name=ORDERS)
def place_order(order_id: str) -> None:
    """Write the row, and have it announced."""
    with sessions.begin() as session:
        entry = shop.enlist(session, key=CurrentMessage.get_current_message().message_id)
        if not entry.is_known:
            session.add(Order(order_id=order_id))
            entry.send(announce.message(order_id), to=Queue(PLACED))
    report(order_id)


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
