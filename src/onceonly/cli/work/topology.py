"""What `onceonly topology` does."""

import asyncio

from msgspec.structs import replace

from onceonly.assembly import open_transport
from onceonly.cli.loading import load, load_all
from onceonly.cli.output import say, show_json, show_table
from onceonly.cli.places import UrlOverrides
from onceonly.cli.reaching import answering
from onceonly.endpoint import Endpoint
from onceonly.endpoint.host import host_of
from onceonly.model.errors import SetupError
from onceonly.ports.transport import ListsSubscriptions, Topology


def create(endpoints: list[str], *, transport: str | None, as_json: bool) -> None:
    """Create missing queues and subscriptions of these endpoints. `onceonly run` does this at start."""
    declared = asyncio.run(_declare(endpoints, UrlOverrides(transport=transport)))
    _answer(declared, as_json=as_json)


def print_(endpoints: list[str], *, as_json: bool) -> None:
    """Print the queues and subscriptions of these endpoints. Connects to nothing."""
    _answer([endpoint.topology() for endpoint in _receivers(endpoints)], as_json=as_json)


def unsubscribe(endpoint: str, *, types: list[str], transport: str | None, as_json: bool) -> None:
    """Remove the subscriptions of an endpoint to event types that it no longer handles."""
    found = load(endpoint)
    topology = replace(found.topology(), gone=tuple(dict.fromkeys(types)))
    if handled := sorted({*topology.gone} & {*topology.events}):
        raise SetupError(
            f"{endpoint} handles {', '.join(handled)}, and would subscribe again at its next start: remove the handler first"
        )
    before = asyncio.run(_change(UrlOverrides(transport=transport).settings(found).transport, topology))
    _answer([topology], as_json=as_json)
    if not as_json:
        for kind in topology.gone:
            say(
                f"{kind}: there was no subscription"
                if before is not None and kind not in before
                else f"unsubscribed from {kind}"
            )


async def _change(place: str, topology: Topology) -> frozenset[str] | None:
    """Declare it. Returns the subscriptions before, None if the broker does not list them."""
    async with answering("transport", place), open_transport(place, topology.endpoint) as transport:
        before = None
        if topology.gone and isinstance(transport, ListsSubscriptions):
            before = await transport.subscriptions(topology.endpoint)
        await transport.declare([topology])
        return before


def _receivers(names: list[str]) -> list[Endpoint]:
    """Load the endpoints. Leaves out those that only send: they have no queue."""
    found = []
    for endpoint in load_all(names):
        if host_of(endpoint).only_sends:
            say(f"{endpoint.name}: has no handlers, so it needs no queue")
        else:
            found.append(endpoint)
    return found


async def _declare(names: list[str], instead: UrlOverrides) -> list[Topology]:
    declared = []
    for endpoint in _receivers(names):
        await _change(instead.settings(endpoint).transport, endpoint.topology())
        declared.append(endpoint.topology())
    return declared


def _answer(topologies: list[Topology], *, as_json: bool) -> None:
    if as_json:
        show_json([_as_json(each) for each in topologies])
        return
    rows = [(each.endpoint, ", ".join(each.events), ", ".join(each.commands)) for each in topologies]
    if any(each.commands for each in topologies):
        show_table("", ("queue", "subscribes to", "takes as commands"), rows)
        say(
            "commands: not subscribed to. If an earlier version subscribed to one, its subscription stays until "
            "`onceonly topology unsubscribe module:endpoint --type TYPE`"
        )
    else:
        show_table("", ("queue", "subscribes to"), [row[:2] for row in rows])


def _as_json(topology: Topology) -> dict[str, object]:
    found: dict[str, object] = {"endpoint": topology.endpoint, "events": topology.events}
    return found | {"commands": topology.commands} if topology.commands else found
