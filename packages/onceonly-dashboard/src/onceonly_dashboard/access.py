"""Access to the dashboard: ways to authenticate, roles, hashes of passwords, and the limit on guessing."""

import asyncio
import hashlib
import hmac
import os
import re
import secrets
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from inspect import isawaitable
from ipaddress import ip_address
from math import ceil
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple, Protocol

from msgspec import Struct

from onceonly.model.errors import SetupError

VIEW, BODY, RETRY, EDIT, DELETE, FORCE = "view", "body", "retry", "edit", "delete", "force"
ROLES = (VIEW, BODY, RETRY, EDIT, DELETE, FORCE)
READING = frozenset({VIEW, BODY})
DEFAULT_ROLES = frozenset(ROLES) - {FORCE}
EVERYONE = "*"

FREE_FAILURES = 5
LONGEST_WAIT_SECONDS = 60.0
MOST_CLIENTS = 1000
MOST_TOKENS = 16
MOST_SECRET = 1024
_REMEMBERED = 256
_REMEMBERED_SECONDS = 600.0

# scrypt with 16 MiB: N = 2^14, r = 8, p = 5 (OWASP, Password Storage Cheat Sheet). Larger parameters in a file are refused.
_COST, _BLOCK, _PARALLEL, _SALT_BYTES, _HASH_BYTES = 1 << 14, 8, 5, 16, 32
_MEMORY = 64 << 20
_HASH = re.compile(r"scrypt\$(\d{1,7})\$(\d{1,2})\$(\d{1,2})\$([A-Za-z0-9+/=]{16,88})\$([A-Za-z0-9+/=]{24,88})")
_USER = re.compile(r"[^\s:\x00-\x1f\x7f]{1,64}")


class User(Struct, frozen=True):
    """The user of a request. `roles` overrides the `roles=` of the dashboard; None uses them."""

    name: str
    roles: frozenset[str] | None = None


class Authentication(Protocol):
    """A way to authenticate requests: `basic`, `bearer`, `application` or `loopback_only`."""

    method: str
    """The name of the way, for the audit: "basic", "bearer", "application" or "loopback"."""
    challenge: str
    """The `WWW-Authenticate` header of a refusal, or empty."""

    async def identify(self, scope: Mapping[str, Any]) -> User | None:
        """Return the user of a request by its ASGI scope, or None. Raises TooManyGuesses."""


class TooManyGuesses(Exception):
    """Credentials were wrong too often: no further ones are checked for `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"too many failed logins: try again in {ceil(seconds)} s")
        self.seconds = seconds


class Guesses:
    """Limits failed logins of one client: after 5 failures it waits 1 s, then twice as long each time, up to 60 s.

    The last 1,000 clients are remembered.
    """

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._failed: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def check(self, client: str) -> None:
        """Raise TooManyGuesses while the client has to wait."""
        _, until = self._failed.get(client, (0, 0.0))
        left = until - self._seconds()
        if left > 0:
            raise TooManyGuesses(left)

    def failed(self, client: str) -> None:
        count = self._failed.pop(client, (0, 0.0))[0] + 1
        wait = min(LONGEST_WAIT_SECONDS, 2.0 ** min(count - FREE_FAILURES, 10)) if count >= FREE_FAILURES else 0.0
        self._failed[client] = (count, self._seconds() + wait)
        while len(self._failed) > MOST_CLIENTS:
            self._failed.popitem(last=False)

    def succeeded(self, client: str) -> None:
        self._failed.pop(client, None)


class _Hash(NamedTuple):
    cost: int
    block: int
    parallel: int
    salt: bytes
    digest: bytes


def hash_password(password: str) -> str:
    """Return the scrypt hash of a password, as `basic` and `bearer` take it: `scrypt$16384$8$5$SALT$HASH`."""
    salt = os.urandom(_SALT_BYTES)
    digest = _scrypt(password, _Hash(_COST, _BLOCK, _PARALLEL, salt, bytes(_HASH_BYTES)))
    return f"scrypt${_COST}${_BLOCK}${_PARALLEL}${b64encode(salt).decode()}${b64encode(digest).decode()}"


def read_users(text: str, origin: str) -> dict[str, str]:
    """Read lines of `NAME:HASH`; empty lines and comments are skipped. `origin` names them in errors. Raises SetupError."""
    users: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, colon, hashed = line.strip().partition(":")
        if not colon:
            raise SetupError(f"{origin}, line {number}: write NAME:HASH, as `onceonly dashboard --new-user NAME` prints it")
        if name in users:
            raise SetupError(f"{origin}, line {number}: user {name!r} is listed twice. Remove one of the lines")
        users[name] = hashed
    if not users:
        raise SetupError(f"{origin} lists no user. Add a line with `onceonly dashboard --new-user NAME`")
    return users


def basic(users: Mapping[str, str] | str | Path, *, seconds: Callable[[], float] = monotonic) -> Authentication:
    """Authenticate by HTTP Basic. `users` maps names to hashes, or is the path of a file with lines `NAME:HASH`.

    `onceonly dashboard --new-user NAME` prints such a line. After 5 failures a client waits 1 s for each user name, then twice
    as long each time, up to 60 s, by the clock `seconds`. Use it behind TLS only. Raises SetupError.
    """
    return _Basic(_users(users, "basic"), seconds)


def bearer(tokens: Mapping[str, str] | str | Path, *, seconds: Callable[[], float] = monotonic) -> Authentication:
    """Authenticate by `Authorization: Bearer`. `tokens` maps names to hashes of tokens, or is a file as for `basic`.

    At most 16 tokens. Browsers do not send such a header on their own: it is for programs, and for proxies that add it.
    Raises SetupError.
    """
    found = _users(tokens, "bearer")
    if len(found) > MOST_TOKENS:
        raise SetupError(f"bearer has {len(found)} tokens; the limit is {MOST_TOKENS}, because each is checked. Remove some")
    return _Bearer(found, seconds)


def application(hook: Callable[[Mapping[str, Any]], User | Awaitable[User | None] | None]) -> Authentication:
    """Authenticate by the application: `hook` receives the ASGI scope and returns a `User`, or None. It may be a coroutine."""
    if not callable(hook):
        raise SetupError(f"application: the hook must be a function of the ASGI scope, not {type(hook).__name__}")
    return _Application(hook)


def loopback_only() -> Authentication:
    """Accept requests that this process received on a loopback address, and refuse all others. It needs no password.

    The address that the server listens at decides. A proxy on the same machine makes every client local, so do not use it
    behind one.
    """
    return _LoopbackOnly()


def is_loopback(host: str) -> bool:
    """Return whether a host is a loopback address, or `localhost`."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def check_roles(roles: object) -> dict[str, frozenset[str]]:
    """Check `roles=`: names of users, or "*" for all others, with their roles. Raises SetupError."""
    if roles is None:
        return {EVERYONE: DEFAULT_ROLES}
    if not isinstance(roles, Mapping):
        raise SetupError(
            f'roles must map user names to roles, such as {{"ana": ["view", "retry"]}}, not {type(roles).__name__}'
        )
    checked: dict[str, frozenset[str]] = {}
    for name, given in roles.items():
        found = frozenset([given] if isinstance(given, str) else given)
        if unknown := sorted(found - set(ROLES)):
            raise SetupError(
                f"roles[{name!r}]: {', '.join(map(repr, unknown))} is not a role. The roles are {', '.join(ROLES)}"
            )
        checked[str(name)] = found
    return checked


class _HashedSecrets:
    """Users with hashes of their secrets, and the limit on guessing them."""

    def __init__(self, users: Mapping[str, _Hash], seconds: Callable[[], float]) -> None:
        self._users = users
        self._guesses = Guesses(seconds)
        self._verifier = _Verifier(seconds)

    async def _find(self, client: str, secret: str, known: Mapping[str, _Hash]) -> User | None:
        """Return the user of `known` who has this secret. Raises TooManyGuesses."""
        self._guesses.check(client)
        right = [name for name, hashed in known.items() if await self._verifier.verify(name, secret, hashed)]
        if not right or right[0] not in self._users:
            self._guesses.failed(client)
            return None
        self._guesses.succeeded(client)
        return User(right[0])


class _Basic(_HashedSecrets):
    method = "basic"
    challenge = 'Basic realm="onceonly", charset="UTF-8"'

    async def identify(self, scope: Mapping[str, Any]) -> User | None:
        name, colon, password = _decoded(_authorization(scope, "basic")).partition(":")
        if not colon:
            return None
        # an unknown user costs as much as a known one, so that names cannot be found by time
        return await self._find(f"{_client(scope)} {name[:64]}", password, {name: self._users.get(name, _NOBODY)})


class _Bearer(_HashedSecrets):
    method = "bearer"
    challenge = 'Bearer realm="onceonly"'

    async def identify(self, scope: Mapping[str, Any]) -> User | None:
        token = _authorization(scope, "bearer")
        return await self._find(_client(scope), token, self._users) if token else None


class _Application:
    method = "application"
    challenge = ""

    def __init__(self, hook: Callable[[Mapping[str, Any]], User | Awaitable[User | None] | None]) -> None:
        self._hook = hook

    async def identify(self, scope: Mapping[str, Any]) -> User | None:
        found = self._hook(scope)
        user = await found if isawaitable(found) else found
        if user is not None and not isinstance(user, User):
            raise SetupError(f"application: the hook returned {type(user).__name__}; return a User or None")
        return user


class _LoopbackOnly:
    method = "loopback"
    challenge = ""

    async def identify(self, scope: Mapping[str, Any]) -> User | None:
        """Look at the address that the request arrived at."""
        server = scope.get("server")
        return User("local") if server and is_loopback(str(server[0])) else None


class _Verifier:
    """Compares secrets with hashes, in threads, at most two at once. What was right is remembered for 10 minutes, as a MAC."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._secret = secrets.token_bytes(32)
        self._right: OrderedDict[bytes, float] = OrderedDict()
        self._places = asyncio.Semaphore(2)

    async def verify(self, name: str, secret: str, known: _Hash) -> bool:
        if len(secret) > MOST_SECRET:
            return False
        mac = hmac.digest(self._secret, b"\0".join((name.encode(), known.digest, secret.encode())), "sha256")
        if self._right.get(mac, 0.0) > self._seconds():
            return True
        async with self._places:
            digest = await asyncio.to_thread(_scrypt, secret, known)
        if not hmac.compare_digest(digest, known.digest):
            return False
        self._right[mac] = self._seconds() + _REMEMBERED_SECONDS
        while len(self._right) > _REMEMBERED:
            self._right.popitem(last=False)
        return True


def _scrypt(secret: str, how: _Hash) -> bytes:
    return hashlib.scrypt(
        secret.encode(), salt=how.salt, n=how.cost, r=how.block, p=how.parallel, maxmem=_MEMORY, dklen=len(how.digest)
    )


def _users(given: Mapping[str, str] | str | Path, name: str) -> dict[str, _Hash]:
    if isinstance(given, str | Path):
        try:
            text = Path(given).read_text(encoding="utf-8")
        except OSError as error:
            raise SetupError(f"{name}: cannot read {given}: {error.strerror}") from error
        given = read_users(text, f"file {given}")
    if not given:
        raise SetupError(f"{name} needs names with hashes, or the path of a file with lines NAME:HASH")
    return {user: _read_hash(user, text) for user, text in given.items()}


def _read_hash(user: str, text: str) -> _Hash:
    if not _USER.fullmatch(user):
        raise SetupError(f"user name {user!r:.80} is not valid: use 1 to 64 characters without spaces and colons")
    found = _HASH.fullmatch(text)
    problem = f"the hash of user {user!r} is not valid: create it with `onceonly dashboard --new-user {user}`"
    if found is None:
        raise SetupError(problem)
    try:
        known = _Hash(int(found[1]), int(found[2]), int(found[3]), b64decode(found[4]), b64decode(found[5]))
        fits = 128 * known.cost * known.block <= _MEMORY // 2 and 1 <= known.parallel <= 16  # noqa: PLR2004 - 16 times the work
        if not fits:
            raise SetupError(f"{problem}. Its parameters need more than 32 MiB")
        _scrypt("", known)
    except (NotBase64, ValueError) as error:
        raise SetupError(problem) from error
    return known


_NOBODY = _Hash(_COST, _BLOCK, _PARALLEL, secrets.token_bytes(_SALT_BYTES), secrets.token_bytes(_HASH_BYTES))


def _authorization(scope: Mapping[str, Any], scheme: str) -> str:
    """Return what follows the scheme in the only `Authorization` header; empty for another scheme, and for two headers."""
    found = [value for name, value in scope.get("headers", ()) if name == b"authorization"]
    if len(found) != 1:
        return ""
    given, _, credentials = found[0].decode("latin-1").partition(" ")
    return credentials.strip() if given.lower() == scheme else ""


def _decoded(credentials: str) -> str:
    try:
        return b64decode(credentials, validate=True).decode()
    except (NotBase64, ValueError):
        return ""


def _client(scope: Mapping[str, Any]) -> str:
    client = scope.get("client")
    return str(client[0]) if client else "-"
