"""The errors that applications catch, and those that handlers and adapters raise.

`OnceOnlyError` is the root. Below it are three families:

* `SetupError`: the set-up is wrong. A person must change something.
* `RetryableError`: the operation did not succeed now and may be tried again from the start. `CommitFailed` means that nothing
  happened, `OutcomeUnknown` that it may have happened. `DispatchPending` means that it happened, and is repeated to finish it.
* `ConflictError`: another attempt won. Nothing of this attempt happened.

The most common ones are names of `onceonly` as well.
"""

from onceonly.model.errors import (
    CommitFailed,
    CommitRefused,
    ConflictError,
    DispatchPending,
    DriverMissing,
    HandlerExpired,
    InvalidEffect,
    InvalidHandler,
    InvalidKey,
    KeyReused,
    LockTimeout,
    OnceOnlyError,
    OutcomeUnknown,
    PermanentFailure,
    QueueMissing,
    Reject,
    RetryableError,
    RetryLater,
    SchemaMissing,
    SchemaTooNew,
    SetupError,
    StoreUnavailable,
    TransactionMisused,
    UnsafeSettings,
    UpgradeRequired,
    VersionConflict,
    WorkerStopped,
)

__all__ = [
    "CommitFailed",
    "CommitRefused",
    "ConflictError",
    "DispatchPending",
    "DriverMissing",
    "HandlerExpired",
    "InvalidEffect",
    "InvalidHandler",
    "InvalidKey",
    "KeyReused",
    "LockTimeout",
    "OnceOnlyError",
    "OutcomeUnknown",
    "PermanentFailure",
    "QueueMissing",
    "Reject",
    "RetryLater",
    "RetryableError",
    "SchemaMissing",
    "SchemaTooNew",
    "SetupError",
    "StoreUnavailable",
    "TransactionMisused",
    "UnsafeSettings",
    "UpgradeRequired",
    "VersionConflict",
    "WorkerStopped",
]

for _name in __all__:
    globals()[_name].__module__ = __name__  # tracebacks show the public name
