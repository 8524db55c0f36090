"""The function of `examples/hosts/aws_lambda/entities.py`, with a fault: it does not stop a group at its first failure."""

from collections.abc import Sequence

from examples.hosts.aws_lambda.entities import handler, shop
from onceonly import Endpoint
from onceonly.integrations import aws_lambda
from onceonly.integrations.lambda_events import LambdaRecord
from onceonly.integrations.lambda_process import Deadline
from onceonly.model.hosted import HostedOutcome

__all__ = ["handler", "shop"]


async def handle_together(
    endpoint: Endpoint, records: Sequence[LambdaRecord], deadline: Deadline
) -> list[HostedOutcome | None]:
    """Handle all messages, whatever their groups are."""
    return list(await aws_lambda._handle(endpoint, records, deadline))


aws_lambda._handle_groups = handle_together
