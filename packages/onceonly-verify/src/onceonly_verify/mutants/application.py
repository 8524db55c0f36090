"""Broken versions of what writes the application's documents together with an entity."""

from functools import partial

from onceonly_verify.mutants.known_bad import mutant
from onceonly_verify.mutants.stored_elsewhere import documents, memory_documents
from onceonly_verify.mutations import change
from onceonly_verify.mutations import operations as do
from onceonly_verify.mutations import places as at

HISTORY, FAILED = "a document next to an entity, history", "a document next to an entity, history and a failed call"
TWO, BATCH = "one document next to two entities", "a document next to an entity, and a handler that fails in the batch"

application = partial(change, "documents.application")
_TOGETHER = at.statement("save_together")

APPLICATION = {
    "application's documents written before the store's": mutant(
        (HISTORY,),
        documents(
            "DocumentStore._write",
            do.replace_statement(
                _TOGETHER,
                """
seen = (await self.documents.load([change.key])).get(change.key)
before = replace(change, body=encode_entity(EntityDocument()) if seen is None else seen.body)
first = await self.together.save_together(before, writes)
return None if first is None else (await self.documents.save([replace(change, expected=first)]))[0]
""",
            ),
        ),
    ),
    "application's documents written after the store's": mutant(
        (HISTORY,),
        documents(
            "DocumentStore._write",
            do.replace_statement(
                _TOGETHER,
                """
first = (await self.documents.save([change]))[0]
if first is None:
    return None
return await self.together.save_together(replace(change, expected=first), writes)
""",
            ),
        ),
    ),
    "application's documents never written": mutant(
        (HISTORY,), application("ApplicationDocuments.writes", do.replace_body("return ()"))
    ),
    "application's documents written although the store's has another version": mutant(
        (HISTORY,), memory_documents("save_together", do.keep_only(at.comparison("expected"), at.condition("expected")))
    ),
    "version of an application's document not compared": mutant(
        (TWO,), memory_documents("save_together", do.drop_operand(at.comparison("expected")))
    ),
    "version of an application's document not named": mutant(
        (TWO,), application("ApplicationDocuments._expected", do.replace_body("return None"))
    ),
    "document that is missing when it is read, replaced": mutant(
        (TWO,),
        application(
            "ApplicationDocuments._expected", do.replace_body('return getattr(self._read.get(address), "version", None)')
        ),
    ),
    "application's documents of a failed handler kept": mutant(
        (BATCH,), application("ApplicationDocuments.undo", do.replace_body("pass"))
    ),
    "application's document read again as it was stored": mutant(
        (BATCH,), application("ApplicationDocuments.get", do.drop(at.branch(at.condition("_writes"))))
    ),
}
