"""Clients that know nothing but to ask again, with the same key, until they have an answer; and then once more."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import uuid4

import httpx

AT_ONCE = 6
SHORTEST, LONGEST = 0.01, 2.0
"""Seconds that a client waits for an answer: a short moment at first, which many an answer misses, and longer each time."""
PAUSE = 0.05  # seconds before it asks again
THINKING = 0.1  # seconds at most between two orders of one client
CREATED = 201


@dataclass
class Wish:
    """One thing that a client wants, and what it was told, each time it was."""

    key: str
    order: dict[str, object]
    answers: list[bytes] = field(default_factory=list)


class Clients:
    """All of them. Without `keys` they make a new key for each request, which is as good as none."""

    def __init__(self, port: int, *, keys: bool, seed: int) -> None:
        self.wishes: list[Wish] = []
        self.requests = 0
        self._port = port
        self._keys = keys
        self._rng = random.Random(seed)  # noqa: S311 - what is ordered is no secret

    async def answered(self) -> int:
        """Count the answers so far."""
        return sum(len(wish.answers) for wish in self.wishes)

    async def order_until(self, enough: asyncio.Event) -> None:
        """Order one thing after the other, some clients at once."""
        async with asyncio.TaskGroup() as group, _connected(self._port) as http:
            ordering = [group.create_task(self._order_until(enough, http)) for _ in range(AT_ONCE)]
            await asyncio.wait(ordering)

    async def ask_again(self) -> None:
        """Repeat every request that was answered, as a client would whose memory is better than its network."""
        left = iter(tuple(self.wishes))

        async def repeat() -> None:
            for wish in left:
                await self._ask(wish, http)

        async with _connected(self._port) as http:
            await asyncio.gather(*(repeat() for _ in range(AT_ONCE)))

    async def _order_until(self, enough: asyncio.Event, http: httpx.AsyncClient) -> None:
        while not enough.is_set():
            wish = Wish(uuid4().hex, {"item": self._rng.choice(["tea", "coffee"]), "quantity": self._rng.randint(1, 9)})
            self.wishes.append(wish)
            copies = self._rng.choice([1, 1, 2])  # some clients are so impatient that they ask twice at once
            await asyncio.gather(*(self._ask(wish, http) for _ in range(copies if self._keys else 1)))
            await asyncio.sleep(self._rng.uniform(0, THINKING))

    async def _ask(self, wish: Wish, http: httpx.AsyncClient) -> None:
        """Ask until there is an answer."""
        patience = self._rng.uniform(SHORTEST, 10 * SHORTEST)
        while True:
            self.requests += 1
            headers = {"Idempotency-Key": f'"{wish.key if self._keys else uuid4().hex}"'}
            try:
                response = await http.post("/orders", json=wish.order, headers=headers, timeout=patience)
            except httpx.TransportError:
                response = None
            if response is not None and response.status_code == CREATED:
                wish.answers.append(response.content)
                return
            patience = min(LONGEST, 1.5 * patience)
            await asyncio.sleep(PAUSE)


@asynccontextmanager
async def _connected(port: int) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:
        yield http
