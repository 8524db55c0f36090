"""No module imports another one in a circle: each can be read after those that it imports."""

from graphlib import CycleError, TopologicalSorter

import grimp

PACKAGES = ("onceonly", "onceonly_conformance", "onceonly_dashboard", "onceonly_demo", "onceonly_verify")


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports inside functions and those for type checkers count, too."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    circle: list[str] = []
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        circle = error.args[1]
    assert circle == []
