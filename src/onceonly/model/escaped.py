"""Text that was not UTF-8: a transport keeps the bytes as lone surrogates (PEP 383), and no store takes these."""

from base64 import b64encode

RAW_HEADER = "onceonly-raw-header"
"""The header of a dead letter with the exact bytes of a header that is not UTF-8: name and value, each in base64."""


def is_utf8(text: str) -> bool:
    """Return whether a text can be stored and sent."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def raw(text: str) -> bytes:
    """Give the bytes that a text was decoded from."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a surrogate that no byte decodes to
        return text.encode("utf-8", "surrogatepass")


def readable(text: str) -> str:
    r"""Write bytes that are not UTF-8 as `\xff`; other text stays as it is."""
    return text if is_utf8(text) else raw(text).decode("utf-8", "backslashreplace")


def readable_headers(headers: tuple[tuple[str, str], ...], *, exact: bool = False) -> tuple[tuple[str, str], ...]:
    """Make headers storable. With `exact`, append the bytes of those that were not UTF-8."""
    if all(is_utf8(name) and is_utf8(value) for name, value in headers):
        return headers
    shown = [(readable(name), readable(value)) for name, value in headers]
    if exact:
        odd = [pair for pair in headers if not (is_utf8(pair[0]) and is_utf8(pair[1]))]
        shown += [(RAW_HEADER, " ".join(b64encode(raw(part)).decode() for part in pair)) for pair in odd]
    return tuple(shown)
