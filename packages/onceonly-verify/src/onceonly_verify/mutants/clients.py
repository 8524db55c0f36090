"""Broken versions of transactions as clients see them: answers, blocks that fail, and control messages among others."""

from onceonly_verify.mutants.known_bad import Mutant, delivery
from onceonly_verify.mutants.transactions import control, transaction
from onceonly_verify.mutations.operations import (
    add_handler,
    always,
    drop,
    first_only,
    imports,
    insert_before,
    replace,
    replace_statement,
)
from onceonly_verify.mutations.places import argument, attempt, call, condition, element, handler, result_of, returned

RETRYING, FAILING = "a client that retries", "a block that fails, and two attempts with one key"
TWO_EFFECTS, CONTROLLED = "tokens elsewhere, a transaction with two effects", "a control message, two effects"
ANOTHER = "a control message that another endpoint processes"
STRAY, BESIDE = "stray control messages next to a good message, and a crash", "a control message next to a good message"
TWO = "two control messages in one batch"
_OPENED = result_of("transactions.open")

CLIENTS: tuple[Mutant, ...] = (
    Mutant(
        "a key that was used for the same request reported as reused",
        (RETRYING,),
        (transaction("_checked", always(condition("fingerprint"))),),
    ),
    Mutant(
        "a committed key reported as a conflict",
        (RETRYING,),
        (
            transaction(
                "begin",
                insert_before(
                    returned("_checked"),
                    "if isinstance(opened, IdempotencyEntry):\n    raise ConflictError('committed by another attempt')",
                    opened=_OPENED,
                ),
            ),
        ),
    ),
    Mutant(
        "a failed block leaves its transaction open",
        (FAILING,),
        (transaction("enclosed", drop(call("abandon", within=handler("HandlerFailed")))),),
    ),
    Mutant(
        "a block that was interrupted leaves its transaction open",
        (FAILING,),
        (transaction("enclosed", drop(call("abandon", within=handler("BaseException")))),),
    ),
    Mutant(
        "only the first effect of a transaction stored",
        (TWO_EFFECTS,),
        (transaction("complete", first_only(argument("Record", 1))),),
    ),
    Mutant(
        "tokens of a transaction prepared without an answer reported as OutcomeUnknown",
        (TWO_EFFECTS,),
        (
            transaction("", imports("contextlib", "nullcontext")),
            transaction("complete", replace("before_commit", "nullcontext()")),
        ),
    ),
    Mutant(
        "unanswered control message reported as OutcomeUnknown",
        (CONTROLLED,),
        (control("announce", add_handler(attempt("transport.send"), "OutcomeUnknown", "raise")),),
    ),
    Mutant(
        "the attempt of another endpoint looked for among one's own",
        (ANOTHER,),
        (
            control("", imports("onceonly.model.identity", "Identity")),
            control("look", replace(argument("attempts.record", 0), "Identity(ports.endpoint, control.attempt)")),
        ),
    ),
    Mutant(
        "messages next to a control message left out of the batch",
        (STRAY, BESIDE),
        (
            control(
                "apart",
                replace(
                    element(returned(), 1), "() if any(not _HEADERS.isdisjoint(each.headers) for each in deliveries) else old"
                ),
            ),
        ),
    ),
    Mutant(
        "only the first control message of a batch looked at",
        (STRAY, TWO),
        (control("apart", first_only(element(returned(), 0))),),
    ),
    Mutant(
        "an unreadable control message acknowledged",
        (STRAY,),
        (
            delivery(
                "_look_at",
                replace_statement(call("give_up"), "await _ack([delivery], ports)\nreturn BatchReport(known=1)"),
            ),
        ),
    ),
)
