"""Another service in memory, as its callers see it: what is asked of it waits, is executed once, and is deleted.

It is what the model checker's endpoints call. Each call is one step here; `algorithms/remote_execution` is checked on its own.
"""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from onceonly.adapters.memory.world import PortOperation, Raises, Step, WorldDriver, WorldPart
from onceonly.model.artifact import Artifact
from onceonly.model.errors import CommitFailed, OnceOnlyError, OutcomeUnknown, PeerAway, RetryableError
from onceonly.model.record import Answer
from onceonly.model.remote import RemoteRequest, Response, Verb, peer_of

Text = tuple[str, bytes]
"""What a request, or its response, is about: its URL, and its body."""


class RemoteWorld(Struct, frozen=True):
    """What waits, what was answered, what must not come back, and everything that was ever executed, in order."""

    requests: frozenset[Text] = frozenset()
    responses: frozenset[Text] = frozenset()
    buried: frozenset[str] = frozenset()
    executed: tuple[bytes, ...] = ()


def put(world: RemoteWorld, url: str, body: bytes) -> Step:
    if url in world.buried:
        return world, Raises(CommitFailed, "it was deleted before it arrived")
    return replace(world, requests=world.requests | {(url, body)}), None


def perform(world: RemoteWorld, calls: tuple[RemoteRequest, ...]) -> Step:
    """Make calls; whatever they come to is an answer."""
    for call in calls:
        world = delete(world, call.url)[0] if call.verb is Verb.DELETE else _execute(world, call.url)
    return world, tuple(Answer.TAKEN for _ in calls)


def read(world: RemoteWorld, urls: tuple[str, ...]) -> Step:
    return world, tuple(dict(world.responses).get(url) for url in urls)


def delete(world: RemoteWorld, url: str) -> Step:
    """Put a tombstone in place of a request and its response."""
    requests = frozenset(each for each in world.requests if each[0] != url)
    responses = frozenset(each for each in world.responses if each[0] != url)
    return replace(world, requests=requests, responses=responses, buried=world.buried | {url}), None


def _execute(world: RemoteWorld, url: str) -> RemoteWorld:
    body = dict(world.requests).get(url)
    if body is None or url in dict(world.responses):
        return world
    return replace(world, responses=world.responses | {(url, body)}, executed=(*world.executed, body))


class MemoryRemote:
    """The one peer of all who share a driver; the name of a request is its URL, and each attempt has one."""

    def __init__(self, driver: WorldDriver) -> None:
        """Use the part of the driver's world that is the other service."""
        self.place = WorldPart("the other service", RemoteWorld())
        self._driver = driver

    async def create(self, artifact: Artifact) -> None:
        operation = PortOperation("remote-put", self.place, put, (artifact.name, artifact.data))
        try:
            await self._driver.perform(operation)
        except OutcomeUnknown as error:
            raise PeerAway(str(error), peer_of(artifact.name)) from error

    async def delete(self, name: str) -> None:
        try:
            await self._driver.perform(PortOperation("remote-delete", self.place, delete, (name,)))
        except RetryableError as error:
            raise PeerAway(str(error), peer_of(name)) from error

    async def read(self, name: str) -> bytes | None:
        """Return the body of a response; see the port."""
        found: tuple[bytes | None, ...] = await self._driver.perform(PortOperation("remote-get", self.place, read, ((name,),)))
        return found[0]

    async def names(self, prefix: str = "") -> tuple[str, ...]:
        """Return the one name that an attempt may have used. Sends no request."""
        return (f"{prefix}0",)

    async def perform(self, calls: Sequence[RemoteRequest]) -> tuple[Answer, ...]:
        operation = PortOperation("remote-call", self.place, perform, (tuple(calls),), many=True)
        try:
            answers: tuple[Answer, ...] = await self._driver.perform(operation)
        except RetryableError:
            return (Answer.UNKNOWN,) * len(calls)
        return answers

    async def responses(self, urls: Sequence[str]) -> tuple[Response | OnceOnlyError | None, ...]:
        """Return what is stored for each; none of them where the service does not answer."""
        operation = PortOperation("remote-get", self.place, read, (tuple(urls),), many=True)
        try:
            bodies: tuple[bytes | None, ...] = await self._driver.perform(operation)
        except RetryableError as error:
            return (error,) * len(urls)
        return tuple(None if body is None else Response(body=body) for body in bodies)
