"""Which content types an HTTP server can send and a message can have (RFC 9110, 8.3)."""

from onceonly.model.sizes import limit_of


def content_type_problem(value: object) -> str:
    """Return what is wrong with a content type; empty when nothing is."""
    longest = limit_of("datacontenttype")
    if not isinstance(value, str):
        return f"must be a string, not {type(value).__name__}"
    if len(value) > longest:
        return f"has {len(value):,} characters; the limit is {longest}"
    if not value.isascii() or not value.isprintable() or value != value.strip():
        return f"must be visible ASCII characters, such as 'text/plain; charset=utf-8', not {value!r:.100}"
    return ""
