"""What S3 says in trouble, how keys are written there, and services that only look like it."""

import pytest

from onceonly.adapters.aws.address import encoded, read_s3
from onceonly.adapters.aws.client import _SendsOnce
from onceonly.adapters.aws.s3.artifacts import open_artifacts
from onceonly.adapters.aws.s3.client import opened
from onceonly.adapters.aws.s3.documents import create, open_documents
from onceonly.model.artifact import Artifact
from onceonly.model.errors import CommitFailed, CommitRefused, OutcomeUnknown, RetryableError, SetupError
from onceonly.ports.documents import Change
from tests.adapters.aws.scripted_service import Asked, Say, standing_in
from tests.servers.cutting_http import Request, cutting_http


def url(endpoint: str, bucket: str = "bucket") -> str:
    """Name the bucket."""
    return f"s3://test:test@{bucket}/docs?region=eu-central-1&endpoint={endpoint}&timeout=5"


def refuse(code: str, status: int) -> Say:
    """Make S3's answer for an error."""
    return Say(status, f"<Error><Code>{code}</Code><Message>told so</Message></Error>".encode())


def is_write(request: Request) -> bool:
    """Tell whether this request changes an object."""
    return request.method in {"PUT", "DELETE"}


@pytest.mark.parametrize(
    ("said", "meaning"),
    [
        (refuse("ConditionalRequestConflict", 409), CommitFailed),
        (refuse("NoSuchBucket", 404), CommitFailed),
        (refuse("AccessDenied", 403), CommitFailed),
        (refuse("EntityTooLarge", 400), CommitRefused),
        (refuse("RequestTimeout", 400), OutcomeUnknown),
        (refuse("SlowDown", 503), OutcomeUnknown),
        (refuse("InternalError", 500), OutcomeUnknown),
        (Say(502, b"<html>"), OutcomeUnknown),
        (Say(200, b"<html>", headers="Unused: 1\r\n"), OutcomeUnknown),
        (Say(0), OutcomeUnknown),
    ],
)
async def test_what_s3_does_not_say_for_sure_is_unknown(said: Say, meaning: type[RetryableError]) -> None:
    """And whatever is said, the write was sent once."""
    async with standing_in(lambda _: said) as (endpoint, asked), open_documents(url(endpoint)) as documents:
        for change in (
            Change(key="a", body=b"x"),
            Change(key="a", body=b"x", expected="v"),
            Change(key="a", body=None, expected="v"),
        ):
            asked.clear()
            with pytest.raises(RetryableError) as raised:
                await documents.save([change])
            assert (type(raised.value), len(asked)) == (meaning, 1)


@pytest.mark.parametrize("code", [("PreconditionFailed", 412), ("NoSuchKey", 404)])
async def test_another_version_is_definite(code: tuple[str, int]) -> None:
    """Also when there is no object any more."""
    async with standing_in(lambda _: refuse(*code)) as (endpoint, _), open_documents(url(endpoint)) as documents:
        for body in (b"x", None):
            assert await documents.save([Change(key="a", body=body, expected='"v"')]) == (None,)


async def test_a_write_on_a_kept_connection_is_sent_once(ministack_endpoint: str) -> None:
    """The HTTP client below the SDK would send it again by itself when the connection breaks."""
    await create(url(ministack_endpoint, "kept"))
    async with (
        cutting_http(ministack_endpoint, is_write) as (cutter, endpoint),
        open_documents(url(endpoint, "kept")) as documents,
    ):
        (version,) = await documents.save([Change(key="a", body=b"x")])
        for change in (Change(key="b", body=b"x"), Change(key="a", body=None, expected=version or "")):
            cutter.cut, cutter.writes = "after", 0
            await documents.load(["a"])
            with pytest.raises(OutcomeUnknown):
                await documents.save([change])
            assert cutter.writes == 1
        assert set(await documents.load(["a", "b"])) == {"b"}


async def test_a_driver_that_goes_past_the_guard_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later one may make its sessions elsewhere: then no write is safe."""
    monkeypatch.delattr(_SendsOnce, "_get_session")
    async with standing_in(lambda _: Say(200)) as (endpoint, _), open_documents(url(endpoint)) as documents:
        with pytest.raises(SetupError, match="repeat a write"):
            await documents.check()


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("orders/17.json", "orders/17.json"),
        ("a b", "a b"),
        ("köln", "k%C3%B6ln"),
        ("a/../b", "a/%2E./b"),
        ("/a//b/", "%2Fa/%2Fb/"),
        ("100%", "100%25"),
        ("a#b?c", "a%23b%3Fc"),
        (" ", "%20"),
    ],
)
def test_a_key_is_written_so_that_every_service_keeps_it(name: str, key: str) -> None:
    """Plain names stay as they are; what is changed can be read back."""
    place = read_s3("s3://bucket/docs")
    assert (encoded(name), place.key(name), place.name(place.key(name))) == (key, f"docs/{key}", name)


async def test_too_large_a_document_is_never_sent() -> None:
    """Nor one whose key would be too long when it is written."""
    async with standing_in(lambda _: Say(200)) as (endpoint, asked), open_documents(url(endpoint)) as documents:
        for bad in (Change(key="a", body=bytes(documents.limits.body + 1)), Change(key="ö" * documents.limits.key, body=b"")):
            with pytest.raises(CommitRefused):
                await documents.save([Change(key="b", body=b""), bad])
        assert asked == []


async def test_a_service_that_ignores_conditions_is_a_setup_error() -> None:
    """Documents would overwrite each other there."""

    def yes(asked: Asked) -> Say:
        listing = b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"
        return Say(200, listing) if asked.line.startswith("GET") else Say(200)

    async with standing_in(yes) as (endpoint, _), open_documents(url(endpoint)) as documents:
        with pytest.raises(SetupError, match="ignores If-None-Match"):
            await documents.check()


async def test_an_object_says_whose_version_it_is(ministack_endpoint: str) -> None:
    """A line that no other write has, and the body behind it."""
    place = url(ministack_endpoint, "lines")
    await create(place)
    await create(place)  # making it again is fine
    async with open_documents(place) as documents, opened(read_s3(place)) as client:
        await documents.save([Change(key="a", body=b'{"total":17}')])
        content = await (await client.get_object(Bucket="lines", Key="docs/a"))["Body"].read()
        assert await documents.check() == ()
    line, body = content.split(b"\n", 1)
    assert (len(line), body) == (32, b'{"total":17}')


async def test_a_name_that_is_no_key_is_refused_as_a_thing(ministack_endpoint: str) -> None:
    """It never was made, and never will be."""
    await create(url(ministack_endpoint, "things"))
    async with open_artifacts(url(ministack_endpoint, "things")) as artifacts:
        for name in ("", "x" * 1024, "\ud800"):
            with pytest.raises(CommitRefused):
                await artifacts.create(Artifact(kind="blob", name=name, data=b""))
            await artifacts.delete(name)
            assert await artifacts.read(name) is None


@pytest.mark.parametrize("wrong", ["s3://", "s3://A_b", "s3://bucket/a//b", "s3://bucket/../b", "s3://bucket?prefix=a"])
def test_a_wrong_s3_url_is_a_setup_error(wrong: str) -> None:
    """It says how to write one."""
    with pytest.raises(SetupError):
        read_s3(wrong)
