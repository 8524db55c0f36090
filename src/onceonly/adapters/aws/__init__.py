"""DynamoDB, S3 and SQS, through aiobotocore."""

from onceonly.ports.transport import Traits
from onceonly.systems import ArtifactService, DocumentService, Driver, System, TransportService


def _dynamodb() -> DocumentService:
    from onceonly.adapters.aws import dynamodb  # noqa: PLC0415 - imports the driver

    return dynamodb


def _s3() -> DocumentService:
    from onceonly.adapters.aws import s3  # noqa: PLC0415 - imports the driver

    return s3


def _artifacts() -> ArtifactService:
    from onceonly.adapters.aws import s3_artifacts  # noqa: PLC0415 - imports the driver

    return s3_artifacts


def _sqs() -> TransportService:
    from onceonly.adapters.aws import sqs  # noqa: PLC0415 - imports the driver

    return sqs.QUEUES


def _dynamodb_address(url: str) -> object:
    from onceonly.adapters.aws.address import read_dynamodb  # noqa: PLC0415 - only for a URL of this system

    return read_dynamodb(url)


def _s3_address(url: str) -> object:
    from onceonly.adapters.aws.address import read_s3  # noqa: PLC0415 - only for a URL of this system

    return read_s3(url)


def _sqs_address(url: str) -> object:
    from onceonly.adapters.aws.sqs_address import read_sqs  # noqa: PLC0415 - only for a URL of this system

    return read_sqs(url)


def _sqs_traits(url: str) -> Traits:
    from onceonly.adapters.aws.sqs_address import read_sqs  # noqa: PLC0415 - the same

    return read_sqs(url).traits


DYNAMODB = System(
    name="DynamoDB",
    address=_dynamodb_address,
    drivers={"": Driver(("aiobotocore",), "onceonly[dynamodb]")},
    documents=_dynamodb,
    parts="prefix",
)
S3 = System(
    name="S3",
    address=_s3_address,
    drivers={"": Driver(("aiobotocore",), "onceonly[s3]")},
    documents=_s3,
    artifacts=_artifacts,
    drops_expired=False,
    parts="path",
)
SQS = System(
    name="SQS",
    address=_sqs_address,
    traits=_sqs_traits,
    drivers={"": Driver(("aiobotocore",), "onceonly[sqs]")},
    transport=_sqs,
)
