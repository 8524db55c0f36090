"""A system names what it opens by text, which no type checker reads."""

import pytest

from onceonly.systems import System, systems

SERVICES = {
    "documents": ("open_documents", "create"),
    "artifacts": ("open_artifacts", "create"),
    "transport": ("open_transport", "temporary_transport"),
}


@pytest.mark.parametrize("system", {id(each): each for each in systems().values()}.values(), ids=lambda each: each.name)
def test_what_a_system_names_can_be_imported(system: System) -> None:
    """It has the functions of its contract. A transport's class is found once, so that its queues share connections."""
    for argument, functions in SERVICES.items():
        opened = getattr(system, argument)
        if opened is not None:
            assert [name for name in functions if not callable(getattr(opened(), name, None))] == []
            assert opened() is opened()
