"""MongoDB: where it is, a client that sends no write twice, and what its errors mean. The driver is pymongo."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from pymongo import AsyncMongoClient
from pymongo.errors import (
    ConfigurationError,
    InvalidURI,
    NotPrimaryError,
    OperationFailure,
    ServerSelectionTimeoutError,
    WriteError,
)

from onceonly.adapters.mongodb.address import EXAMPLE, MongoDBAddress
from onceonly.model.errors import CommitFailed, OnceOnlyError, OutcomeUnknown, SetupError

CONNECTIONS = 32
_NOT_BEGUN = {
    13,  # Unauthorized
    18,  # AuthenticationFailed
    13435,  # NotPrimaryNoSecondaryOk
    10107,  # NotWritablePrimary
    20,  # IllegalOperation
    59,  # CommandNotFound
    73,  # InvalidNamespace
    8000,  # a hosted service's own refusal
}
"""Codes of commands that were refused as a whole, before anything was written."""
_NOT_WRITTEN = {
    121,  # DocumentValidationFailure
    10334,  # BSONObjectTooLarge
    17280,  # KeyTooLong
    17419,  # the document would grow too large
}
"""Codes of single writes that were refused."""


@asynccontextmanager
async def open_client(address: MongoDBAddress) -> AsyncIterator["AsyncMongoClient[dict[str, Any]]"]:
    """Make a client, and close it at the end; connects at the first call. Raises SetupError when the URL is wrong."""
    milliseconds = round(address.timeout * 1000)
    try:
        client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(
            address.url,
            appname="onceonly",
            retryWrites=False,  # a repeated write would answer "another version" to itself
            serverSelectionTimeoutMS=milliseconds,
            connectTimeoutMS=milliseconds,
            socketTimeoutMS=2 * milliseconds,
            maxAdaptiveRetries=0,  # the same for a server that is overloaded
            maxPoolSize=CONNECTIONS,
            tz_aware=True,
        )
    except (ConfigurationError, InvalidURI, ValueError, TypeError) as error:
        raise SetupError(f"invalid MongoDB URL ({type(error).__name__}): use a URL such as {EXAMPLE}") from error
    try:
        yield client
    finally:
        await client.close()


def translated(error: Exception, *, reads: bool = False) -> OnceOnlyError:
    """Translate the driver's errors by allow-list; gives, never raises. A read that failed is CommitFailed: it changes nothing.

    That a duplicate key was refused is an answer, not an error.
    """
    text = f"MongoDB: {error}"
    return CommitFailed(text) if reads or _is_definite(error) else OutcomeUnknown(text)


def refused_setup(error: Exception, address: MongoDBAddress) -> OnceOnlyError:
    """Return what a person must change when a start fails, or that the server is away."""
    if isinstance(error, OperationFailure) and error.code in {13, 18, 8000}:
        return SetupError(f"{address.place} rejected this user: check the password, grant readWrite and listCollections")
    return CommitFailed(f"MongoDB at {address.place}: {error}")


def _is_definite(error: Exception) -> bool:
    if isinstance(error, ServerSelectionTimeoutError):
        return True  # there was no server to send it to
    if isinstance(error, WriteError):
        return error.code in _NOT_WRITTEN
    if not isinstance(error, OperationFailure | NotPrimaryError):
        return False
    # A command that says "ok" was executed, and what is wrong is that its replication is not confirmed.
    details = error.details if isinstance(error.details, dict) else {}
    return details.get("ok") == 0 and details.get("code") in _NOT_BEGUN and "writeConcernError" not in details
