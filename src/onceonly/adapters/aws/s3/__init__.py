"""S3."""

from onceonly.systems import Driver, System, imported

SYSTEM = System(
    name="S3",
    address=imported("onceonly.adapters.aws.address:read_s3"),
    keys=imported("onceonly.adapters.aws.address:s3_keys"),
    drivers={"": Driver(("aiobotocore",), "onceonly[s3]")},
    documents=imported("onceonly.adapters.aws.s3.documents"),
    artifacts=imported("onceonly.adapters.aws.s3.artifacts"),
    drops_expired=False,
    parts="path",
)
