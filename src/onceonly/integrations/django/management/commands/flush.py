"""`manage.py flush`, which also empties the tables of onceonly.

Django's command sends `post_migrate` afterwards, but neither for a database without tables of models, nor in a
`TransactionTestCase` with `serialized_rollback` or `available_apps`.
"""

from typing import Any

from django.core.management.commands import flush
from django.db import connections

from onceonly.integrations.django.schema import empty_tables

_QUESTION = """You have requested a flush of the database.
This will IRREVERSIBLY DESTROY all data currently in the {name!r} database,
also all messages, keys and dead letters of onceonly.
Are you sure you want to do this?

    Type 'yes' to continue, or 'no' to cancel: """


class Command(flush.Command):
    """Django's command, and `empty_tables`."""

    def handle(self, **options: Any) -> None:
        """Empty the tables of models, then those of onceonly."""
        database = options["database"]
        if options["interactive"] and input(_QUESTION.format(name=connections[database].settings_dict["NAME"])) != "yes":
            self.stdout.write("Flush cancelled.")
            return
        super().handle(**{**options, "interactive": False})
        empty_tables(database)
