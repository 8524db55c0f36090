"""Messages that a host hands over, and what it does with each afterwards."""

from collections.abc import Iterable, Mapping

from msgspec import Struct

__all__ = ["HostedMessage", "HostedOutcome"]


class HostedMessage(Struct, frozen=True):
    """A message that a host received. It is read as a worker reads one: CloudEvents headers or a CloudEvent as the body.

    * `body`: bytes, as they arrived.
    * `headers`: a mapping or pairs. A value may be text, bytes, a number, a boolean or a datetime. None is left out.
      None instead of all headers means that there are none.
    * `id`: the host's id of the message, for one without a CloudEvents id. Copies must have the same one. The endpoint's
      `identity=` has priority. Leave it out, or pass None, if the host has none.
    * `deliveries`: how often the host has delivered the message, this time included. All but one count as failed attempts. 1
      where a host does not count, and 2 where it only marks a message as redelivered.
    * `queue`: where the message comes from, which is its source if it has no CloudEvents source. Default: the endpoint's name.
    * `receipt`: anything of the host's own. It is not read.
    """

    body: bytes
    headers: Mapping[str, object] | Iterable[tuple[str, object]] | None = ()
    id: str | None = ""
    deliveries: int = 1
    queue: str = ""
    receipt: object = None


class HostedOutcome(Struct, frozen=True, kw_only=True):
    """What a host does with a message.

    * `is_settled`: the host may acknowledge it. Its effects have happened and its messages were sent, or its dead letter is
      stored. Otherwise the message must be delivered again.
    * `retry_after`: how many seconds from now the next delivery is due, 0.0 for at once. None if it is settled. A host that
      cannot wait delivers it earlier: nothing is lost.
    * `is_dead`: it was given up, and its dead letter is stored.
    * `reason`: why it is delivered again, or was given up. Empty if it is done.
    """

    is_settled: bool
    retry_after: float | None = None
    is_dead: bool = False
    reason: str = ""
