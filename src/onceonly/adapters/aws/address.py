"""The URLs of DynamoDB tables and S3 buckets, and what all URLs of AWS have. No driver is needed to read them."""

import re
from collections.abc import Mapping
from urllib.parse import SplitResult, unquote, unquote_to_bytes

from msgspec import Struct

from onceonly.documents.limits import DOCUMENT_LIMITS
from onceonly.model.errors import SetupError
from onceonly.systems import KeySpace
from onceonly.systems.urls import Hiding, is_plain_http, read_options, read_seconds, server_of, split_parts

DEFAULT_KEY_PREFIX = "onceonly/"
DEFAULT_VERSION_ATTRIBUTE = "_version"
_DYNAMODB_OPTIONS = ("endpoint", "prefix", "timeout", "version_attribute")
_EXAMPLES = {"dynamodb": "dynamodb://eu-central-1/onceonly", "s3": "s3://my-bucket/onceonly", "sqs": "sqs://eu-central-1"}
_SERVICES = {"dynamodb": "DynamoDB", "s3": "S3", "sqs": "SQS"}
TABLE_NAME = re.compile(r"[A-Za-z0-9_.-]{3,255}")
LONGEST_KEY = DOCUMENT_LIMITS["S3"].key  # bytes of UTF-8, as S3 counts them
_S3_OPTIONS = ("region", "endpoint", "timeout")
_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.!*'()=,@:+$&; ")
_SLASH, _DOT, _SPACE = b"/. "


class AwsAccess(Hiding, frozen=True, kw_only=True):
    """Address and credentials of a service.

    `endpoint` empty is AWS's own address for the region; `key` and `secret` empty leave it to the SDK's environment.
    `timeout` is for how many seconds an answer is waited for.
    """

    region: str
    endpoint: str = ""
    key: str = ""
    secret: str = ""
    timeout: float = 10.0


def split_url(url: str, scheme: str, options: tuple[str, ...]) -> tuple[SplitResult, dict[str, str]]:
    """Take a URL apart into its parts and its options. Raises SetupError; it never repeats a secret."""
    parts = split_parts(url, _SERVICES[scheme], _EXAMPLES[scheme])
    return parts, read_options(parts.query, _SERVICES[scheme], options)


def read_access(parts: SplitResult, options: Mapping[str, str], region: str) -> AwsAccess:
    """Read address and credentials from the parts of a URL. Raises SetupError."""
    if region and not re.fullmatch(r"[a-z0-9-]{2,40}", region):
        raise SetupError("the region in this URL is not an AWS region: use a region such as eu-central-1")
    endpoint = options.get("endpoint", "")
    if endpoint and not is_plain_http(endpoint):
        raise SetupError("option endpoint: use a URL that begins with https:// or http://, without a user and options")
    return AwsAccess(
        region=region,
        endpoint=endpoint,
        key=unquote(parts.username or ""),
        secret=unquote(parts.password or ""),
        timeout=read_seconds(options, "timeout", 10.0),
    )


class DynamoDBAddress(Struct, frozen=True, kw_only=True):
    """A table, and the prefix that begins every key in it.

    `version_attribute` is the attribute of items of the application that is new with every write.
    """

    access: AwsAccess
    table: str
    prefix: str = DEFAULT_KEY_PREFIX
    version_attribute: str = DEFAULT_VERSION_ATTRIBUTE


def read_dynamodb(url: str) -> DynamoDBAddress:
    """Take `dynamodb://region/table?endpoint=...&prefix=...&version_attribute=...` apart. Raises SetupError."""
    parts, options = split_url(url, "dynamodb", _DYNAMODB_OPTIONS)
    table, prefix = parts.path.removeprefix("/"), options.get("prefix", DEFAULT_KEY_PREFIX)
    if not parts.hostname or not TABLE_NAME.fullmatch(table):
        raise SetupError(
            f"a DynamoDB URL needs a region and a table, such as {_EXAMPLES['dynamodb']}. "
            "A table name has 3 to 255 letters, digits, and any of _ . -"
        )
    if not re.fullmatch(r"[A-Za-z0-9_./-]{1,64}", prefix):
        raise SetupError(f"option prefix={prefix!r}: use 1 to 64 letters, digits, and any of _ . / -")
    version = options.get("version_attribute", DEFAULT_VERSION_ATTRIBUTE)
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,255}", version):
        raise SetupError(f"option version_attribute={version!r}: use 1 to 255 letters, digits, and any of _ . -")
    return DynamoDBAddress(
        access=read_access(parts, options, parts.hostname), table=table, prefix=prefix, version_attribute=version
    )


class S3Address(Struct, frozen=True, kw_only=True):
    """A bucket, and what every key in it begins with: empty, or ending in a slash."""

    access: AwsAccess
    bucket: str
    prefix: str = ""

    def key(self, name: str) -> str:
        """Write a name as an object's key: other than letters, digits and common marks, bytes become `%` and two digits.

        Also the first of `/`, `.` and space after a slash: proxies and SDKs tidy such paths up. Each name has a key of its own,
        and names that begin alike have keys that begin alike.
        """
        return self.prefix + encoded(name)

    def name(self, key: str) -> str:
        return unquote_to_bytes(key.removeprefix(self.prefix)).decode()


def encoded(name: str) -> str:
    """Write a name so that every service keeps it apart from every other name."""
    written: list[str] = []
    before = _SLASH
    for byte in name.encode():
        is_plain = byte in _PLAIN and not (before == _SLASH and byte in {_DOT, _SPACE})
        written.append(chr(byte) if is_plain or (byte == _SLASH != before) else f"%{byte:02X}")
        before = byte
    return "".join(written)


def read_s3(url: str) -> S3Address:
    """Take `s3://bucket/prefix?region=...&endpoint=...` apart. Raises SetupError."""
    parts, options = split_url(url, "s3", _S3_OPTIONS)
    prefix = parts.path.strip("/")
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", parts.hostname or ""):
        raise SetupError(f"an S3 URL needs a bucket: use one such as {_EXAMPLES['s3']}")
    if (
        not re.fullmatch(r"([A-Za-z0-9_-][A-Za-z0-9_.-]*(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*)?", prefix)
        or len(prefix) > LONGEST_KEY // 8
    ):
        raise SetupError(f"prefix {prefix!r}: use at most {LONGEST_KEY // 8} letters, digits and any of _ . / -")
    return S3Address(
        access=read_access(parts, options, options.get("region", "")),
        bucket=parts.hostname or "",
        prefix=f"{prefix}/" if prefix else "",
    )


def s3_keys(url: str) -> KeySpace:
    """Return the keys below the prefix of a URL. The name of a bucket is unique on AWS, in all regions. Raises SetupError."""
    place = read_s3(url)
    server = server_of(place.access.endpoint) if place.access.endpoint else ""
    return KeySpace(f"{'' if server.endswith('.amazonaws.com') else server}/{place.bucket}", place.prefix)


def dynamodb_keys(url: str) -> KeySpace:
    """Return the keys of a URL's prefix, in a table of a region or of a service of one's own. Raises SetupError."""
    place = read_dynamodb(url)
    access = place.access
    return KeySpace(f"{server_of(access.endpoint) if access.endpoint else access.region}/{place.table}", place.prefix)
