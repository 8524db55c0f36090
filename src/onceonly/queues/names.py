"""Names of endpoints and event types in the characters that a broker allows, and options that the URLs of several have."""

import re
import ssl
from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b

from onceonly.model.errors import SetupError
from onceonly.model.wording import an

__all__ = ["DOTTED_PREFIX", "LETTERS", "TLS_FILES", "EscapedNames", "check_tls", "read_prefix", "tls_context"]

LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-")
"""What all brokers allow."""
TLS_FILES = ("cafile", "certfile", "keyfile")
DOTTED_PREFIX = r"[a-z][a-z0-9_.-]{0,30}", "a lower-case letter, then at most 30 of a-z, 0-9, '_', '.' and '-'"
"""The pattern and the rule of a prefix for brokers whose names may have dots."""


class EscapedNames:
    """Writes names so that no two become one: each byte that is not `plain` as a mark and two hexadecimal digits.

    A name that is too long then is written as `hashed` and a hash of this number of bytes.
    """

    def __init__(self, plain: frozenset[str], *, mark: str, hashed: str, hash_bytes: int = 16) -> None:
        """Use a mark, one character, that is not plain."""
        self._plain = plain
        self._mark = mark
        self._hashed = hashed
        self._hash_bytes = hash_bytes
        self._escaped = re.compile(f"(?:{re.escape(mark)}[0-9a-f]{{2}})+")
        self.write = lru_cache(10_000)(self._write)

    def read(self, written: str, longest: int) -> str | None:
        """Return the name that was written; None for a hash, and for what `write` does not write."""
        try:
            name = self._escaped.sub(lambda found: bytes.fromhex(found[0].replace(self._mark, "")).decode(), written)
            return name if self.write(name, longest) == written else None
        except UnicodeError:
            return None

    def hash(self, name: str) -> str:
        """Return what is written for a name that is too long."""
        return self._hashed + blake2b(name.encode(), digest_size=self._hash_bytes).hexdigest()

    def _write(self, name: str, longest: int) -> str:
        mark, plain = self._mark, self._plain
        written = "".join(each if each in plain else "".join(f"{mark}{byte:02x}" for byte in each.encode()) for each in name)
        return written if len(written) <= longest else self.hash(name)


def read_prefix(options: Mapping[str, str], pattern: str, rule: str, default: str = "") -> str:
    """Return the option that begins all names. Raises SetupError, which repeats the rule, unless it matches the pattern."""
    prefix = options.get("prefix", default)
    if prefix != default and not re.fullmatch(pattern, prefix):
        raise SetupError(f"prefix {prefix!r}: use {rule}")
    return prefix


def check_tls(options: Mapping[str, str], scheme: str, secure_scheme: str, *more_files: str) -> None:
    """Check a URL without TLS. Raises SetupError if it has options for TLS."""
    if extra := sorted(options.keys() & {*TLS_FILES, *more_files, "verify"}):
        raise SetupError(f"options for TLS in {an(scheme)}:// URL: {', '.join(extra)}. Remove them, or use {secure_scheme}://")


def tls_context(place: str, *, cafile: str, certfile: str, keyfile: str, verifies: bool) -> ssl.SSLContext:
    """Return what a client at `place` uses for TLS. An empty file is not used. Raises SetupError for an unreadable one."""
    try:
        context = ssl.create_default_context(cafile=cafile or None)
        if certfile:
            context.load_cert_chain(certfile, keyfile or None)
    except OSError as error:  # an SSLError is one
        raise SetupError(f"cannot read the TLS files of {place}: {error}. Correct cafile, certfile or keyfile") from error
    if not verifies:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
