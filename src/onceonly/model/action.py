"""Actions of operators on dead letters, as they are stored: who did what, when, with which letters, and the outcome."""

from enum import StrEnum

from msgspec import Struct

ACTIONS_KEPT_MS = 400 * 86_400_000
"""For how long actions are stored."""


class ActionKind(StrEnum):
    """What an operator did."""

    RETRY = "retry"
    RETRY_ANYWAY = "retry anyway"
    EDIT = "edit and retry"
    SEND_AS_NEW = "send as new"
    DELETE = "delete"
    RESTORE = "restore"
    OPEN = "open body"


class ActionState(StrEnum):
    """How far an action is."""

    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    REFUSED = "refused"


class ItemOutcome(StrEnum):
    """What became of one dead letter. PLANNED is stored before the effect, so that a crash leaves no letter without a row."""

    PLANNED = "planned"
    WAITING = "waiting"
    HANDLED = "handled"
    FAILED_AGAIN = "failed again"
    KEPT = "kept"
    UNKNOWN = "unknown"
    DELETED = "deleted"
    RESTORED = "restored"


class ActionScope(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which letters, fixed at the confirmation: these keys, or a filter.

    `rate` is how many letters a second are sent; 0 for no limit. With `probe` the first letters are sent alone, and the others
    only if these are handled. `form` is the number of the form that confirmed it: each form confirms one action.
    """

    keys: tuple[str, ...] = ()
    type: str = ""
    reason: str = ""
    failure: str = ""
    rate: float = 0
    probe: int = 0
    form: str = ""


class Action(Struct, frozen=True, kw_only=True):
    """One action. `endpoint` is empty for letters of several endpoints. Times are in milliseconds since 1970.

    * `position`: its number. 0 before it is stored.
    * `upto`: the position of the last letter that the scope covers. Later letters are not touched.
    * `reached`: how far it is: the position of a letter, or a count of keys.
    * `total`, `done`, `kept`: numbers of letters. At the end, `done + kept` is `total`, unless it was stopped.
    * `runner`, `lease`: the process that works on it, and until when no other process may.
    """

    actor: str
    method: str
    action: ActionKind
    endpoint: str = ""
    scope: ActionScope = ActionScope()
    upto: int = 0
    reached: int = 0
    reason: str = ""
    state: ActionState = ActionState.RUNNING
    total: int = 0
    done: int = 0
    kept: int = 0
    runner: str = ""
    lease: int = 0
    position: int = 0
    at: int = 0


class ActionItem(Struct, frozen=True, kw_only=True):
    """What an action did with one letter. `detail` says why a letter was kept.

    * `letter`: its key. `identity`: the hash of endpoint, source and id, or b"" for a letter without identity.
    * `before`, `after`: the fingerprints of the bodies, where the action sent one.
    * `stored`: the letter, until the instant `stored_until`: whole where it can be restored, else without its bodies.
    """

    action: int
    number: int
    letter: str
    identity: bytes = b""
    outcome: ItemOutcome = ItemOutcome.PLANNED
    detail: str = ""
    before: bytes = b""
    after: bytes = b""
    stored: bytes = b""
    stored_until: int = 0
    at: int = 0
