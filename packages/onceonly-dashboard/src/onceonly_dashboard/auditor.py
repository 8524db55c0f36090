"""What the dashboard reports about its users: requests that were refused, and a counter of actions."""

import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from http import HTTPStatus
from importlib.util import find_spec
from typing import Any

from onceonly.formats.log_events import EventLogger
from onceonly.model.action import Action, ActionKind, ActionState
from onceonly.ports.environment import Clock
from onceonly.runtime.metrics.catalog import DASHBOARD_ACTIONS, SCHEMA_URL
from onceonly_dashboard.gate import Refusal

LINES, LINES_MS = 100, 60_000
"""Refused requests that are logged in a minute. The next line counts the others."""
ROWS, USER_ROWS, ROWS_MS = 100, 20, 3_600_000
"""Refused actions that are stored in an hour: of all users, and of one."""
MOST_USERS = 1000

KINDS: Mapping[str, ActionKind] = {
    "retry": ActionKind.RETRY,
    "force": ActionKind.RETRY_ANYWAY,
    "delete": ActionKind.DELETE,
    "edit": ActionKind.EDIT,
    "new": ActionKind.SEND_AS_NEW,
    "restore": ActionKind.RESTORE,
}
"""The actions by the last part of the path of their form."""

_log = EventLogger(logging.getLogger("onceonly.audit"))


class Allowance:
    """Permits at most `most` events in the last `milliseconds`."""

    def __init__(self, most: int, milliseconds: int) -> None:
        self._most, self._milliseconds = most, milliseconds
        self._times: deque[int] = deque()

    def permits(self, now: int) -> bool:
        """Return whether one more is permitted, and count it."""
        while self._times and self._times[0] <= now - self._milliseconds:
            self._times.popleft()
        if len(self._times) >= self._most:
            return False
        self._times.append(now)
        return True


class RequestAuditor:
    """Reports what the gate refused, and what users did. What strangers can cause is bounded, in the log and in the table."""

    def __init__(self, method: str, clock: Clock) -> None:
        self.method = method
        self._clock = clock
        self._lines, self._rows = Allowance(LINES, LINES_MS), Allowance(ROWS, ROWS_MS)
        self._users: OrderedDict[str, Allowance] = OrderedDict()
        self._left_out = 0
        self._counts: Counter[tuple[str, str]] = Counter()
        self._meter = _meter()

    def refused(self, user: str, path: str, refused: Refusal, *, is_stored: bool = False) -> None:
        """Count a form that was refused, and log it unless it is stored: a stored action has its own line."""
        self._count(_kind(path), "refused")
        if is_stored:
            return
        if not self._lines.permits(self._clock.now()):
            self._left_out += 1
            return
        left_out, self._left_out = self._left_out, 0
        _log.info(
            "operator request refused",
            extra={
                "actor": user,
                "method": self.method,
                "path": path[:200],
                "status": refused.status_code,
                "reason": refused.detail,
                "left_out": left_out,
            },
        )

    def may_store(self, user: str) -> bool:
        """Return whether one more refused action of this user may be stored, and count it."""
        now = self._clock.now()
        own = self._users.pop(user, None) or Allowance(USER_ROWS, ROWS_MS)
        self._users[user] = own
        while len(self._users) > MOST_USERS:
            self._users.popitem(last=False)
        return own.permits(now) and self._rows.permits(now)

    def ended(self, action: Action) -> None:
        if action.state in (ActionState.DONE, ActionState.STOPPED):
            self._count(action.action.value, action.state.value)

    def _count(self, action: str, outcome: str) -> None:
        self._counts[action, outcome] += 1
        if self._meter is not None:
            pairs = zip(DASHBOARD_ACTIONS.attributes, (action, outcome), strict=True)
            self._meter.add(1, dict(pairs))

    def prometheus(self) -> bytes:
        """Return the counter as Prometheus text. Raises Refusal without the library for it."""
        if find_spec("prometheus_client") is None:
            raise Refusal(HTTPStatus.NOT_IMPLEMENTED, "/metrics needs prometheus_client: pip install 'onceonly[prometheus]'")
        from prometheus_client import CollectorRegistry, generate_latest  # noqa: PLC0415 - an extra
        from prometheus_client.core import CounterMetricFamily  # noqa: PLC0415 - the same

        family = CounterMetricFamily(DASHBOARD_ACTIONS.prometheus, DASHBOARD_ACTIONS.meaning, labels=DASHBOARD_ACTIONS.labels)
        for attributes, count in sorted(self._counts.items()):
            family.add_metric(attributes, count)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_FamilyCollector(family))
        text: bytes = generate_latest(registry)
        return text


class _FamilyCollector:
    def __init__(self, family: Any) -> None:
        self._family = family

    def collect(self) -> list[Any]:
        return [self._family]


def _kind(path: str) -> str:
    name = path.rpartition("/")[2]
    return KINDS[name].value if name in KINDS else "stop" if name == "stop" else "other"


def _meter() -> Any:
    """Return a counter of the global meter provider, which records nothing until the application sets one. None without it."""
    if find_spec("opentelemetry") is None:
        return None
    from opentelemetry import metrics  # noqa: PLC0415 - an extra

    meter = metrics.get_meter("onceonly", schema_url=SCHEMA_URL)
    return meter.create_counter(DASHBOARD_ACTIONS.name, unit=DASHBOARD_ACTIONS.unit, description=DASHBOARD_ACTIONS.meaning)
