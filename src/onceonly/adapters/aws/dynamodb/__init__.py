"""DynamoDB."""

from onceonly.systems import Driver, System, imported

SYSTEM = System(
    name="DynamoDB",
    address=imported("onceonly.adapters.aws.address:read_dynamodb"),
    drivers={"": Driver(("aiobotocore",), "onceonly[dynamodb]")},
    keys=imported("onceonly.adapters.aws.address:dynamodb_keys"),
    documents=imported("onceonly.adapters.aws.dynamodb.documents"),
    parts="prefix",
    lists_pending=True,
    saves_together=True,
)
