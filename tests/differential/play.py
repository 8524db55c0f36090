"""One handler's run, the same code on both sides."""

from onceonly import Reject
from tests.differential import operations as ops
from tests.differential.models import CURRENT
from tests.differential.programs import Ending, Kind, Message
from tests.differential.tools import Tools


class Failed(Exception):
    """The handler's own error."""


async def play(message: Message, tools: Tools) -> None:
    """Do what the message's handler does."""
    CURRENT.set(f"m{tools.message}")
    tools.run = tools.side.start(tools.message)
    for tools.position, operation in enumerate(message.operations):
        await operation.run(tools)
    match message.ending:
        case Ending.RAISE:
            raise Failed(f"message {tools.message} raises")
        case Ending.REJECT:
            raise Reject(f"message {tools.message} is rejected")
        case Ending.TIME_OUT:
            await tools.side.wait_forever(tools)
        case Ending.BREAK:
            has_session = message.kind not in {Kind.CONNECTION, Kind.DEF_CONNECTION}
            await (ops.BreakInFlush() if has_session else ops.BreakNow()).run(tools)
        case Ending.BREAK_AT_COMMIT:
            await ops.BreakAtCommit().run(tools)
        case _:
            return
