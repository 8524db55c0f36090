"""When a message expires: the CloudEvents extension `expirytime` (CloudEvents, extensions/expirytime)."""

from datetime import UTC, datetime, timedelta
from functools import lru_cache

EXPIRES = "expirytime"
"""The CloudEvents extension attribute with the time after which a message must not be handled any more, as in RFC 3339."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def expiry_text(instant: int) -> str:
    """Write an instant, in milliseconds since 1970."""
    return (_EPOCH + instant * _MILLISECOND).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@lru_cache(1000)
def read_expiry(text: str) -> int:
    """Read an instant, in milliseconds since 1970. 0 for none, and for what no clock shows: such a message never expires."""
    try:
        moment = datetime.fromisoformat(text)
        return max(1, (moment - _EPOCH) // _MILLISECOND) if moment.tzinfo is not None else 0
    except (ValueError, OverflowError):
        return 0
