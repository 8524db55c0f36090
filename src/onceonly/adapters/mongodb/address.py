"""The URL of a MongoDB database. No driver is needed to read it."""

import re
from urllib.parse import parse_qsl, urlencode

from onceonly.model.errors import SetupError
from onceonly.queues.names import read_prefix
from onceonly.systems.urls import Hiding, read_seconds, split_parts

EXAMPLE = "mongodb://localhost:27017/shop?collection=onceonly"
_OURS = ("collection", "prefix", "timeout")
_FIXED = ("w", "journal", "wtimeoutms", "readconcernlevel", "readpreference", "retrywrites", "retryreads", "maxadaptiveretries")
_PREFIX = r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,62}", "a letter or digit, then at most 62 of A-Z, a-z, 0-9, '_', '.', ':' and '-'"
_COLLECTION = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,100}")


class MongoDBAddress(Hiding, frozen=True, kw_only=True):
    """A database as a URL names it. `url` is the driver's, with credentials; `place` is what may be shown.

    `prefix` begins the `_id` of every document of this place; empty where the place has the rest of the collection.
    """

    url: str
    place: str
    database: str
    collection: str
    timeout: float
    prefix: str = ""


def read_address(url: str) -> MongoDBAddress:
    """Take a mongodb:// or mongodb+srv:// URL apart. Raises SetupError; never repeats its password."""
    parts = split_parts(url, "MongoDB", EXAMPLE)
    database, given = parts.path.strip("/"), parse_qsl(parts.query, keep_blank_values=True)
    if not parts.netloc or not database or "/" in database:
        raise SetupError(f"this MongoDB URL has no database: use a URL such as {EXAMPLE}")
    if fixed := sorted({name for name, _ in given if name.lower() in _FIXED}):
        raise SetupError(
            f"remove {', '.join(fixed)} from the MongoDB URL: onceonly sets them for safe writes and current reads"
        )
    ours = {name: value for name, value in given if name in _OURS}
    collection = ours.get("collection", "onceonly")
    if not _COLLECTION.fullmatch(collection):
        raise SetupError(f"collection {collection!r}: use a letter, then at most 100 of A-Z, a-z, 0-9, '_', '.' and '-'")
    rest = urlencode([(name, value) for name, value in given if name not in _OURS])
    return MongoDBAddress(
        url=parts._replace(query=rest).geturl(),
        place=f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/{database}",
        database=database,
        collection=collection,
        timeout=read_seconds(ours, "timeout", 10.0),
        prefix=read_prefix(ours, *_PREFIX),
    )
