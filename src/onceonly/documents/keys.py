"""Names for services that do not take every text: a byte of UTF-8 outside a safe set is written as = and two hex digits.

Encoding goes byte by byte, so what begins with a prefix begins with it when encoded, and no two keys get one name.
"""

import re
from collections.abc import Callable

_ESCAPED = re.compile(rb"=([0-9A-F]{2})")


def encoder(safe: str) -> Callable[[str], str]:
    """Make an encoder that writes these ASCII characters as they are; "=" must not be among them."""
    names = [chr(byte) if chr(byte) in safe else f"={byte:02X}" for byte in range(256)]

    def encode(key: str) -> str:
        return "".join([names[byte] for byte in key.encode()])

    return encode


def decode(name: str) -> str:
    """Give the key that has this name. Raises ValueError for a name that no key has."""
    return _ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), name.encode("ascii")).decode()


def is_text(key: str) -> bool:
    """Tell whether a key has a form in UTF-8; no document has one that has not."""
    try:
        key.encode()
    except UnicodeEncodeError:
        return False
    return True
