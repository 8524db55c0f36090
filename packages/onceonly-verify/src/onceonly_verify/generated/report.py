"""What a run over generated mutants prints, for persons and for programs."""

from typing import Any

from onceonly.cli.output import show, show_table
from onceonly_verify.generated.suite import GeneratedFindings, ModuleFigures

COLUMNS = ("module", "total", "run", "caught", "equivalent", "survivors", "percent")


def generated_json(found: GeneratedFindings) -> dict[str, Any]:
    """Return the figures for programs."""
    return {
        **_numbers(found.figures),
        "sampled": found.sampled,
        "seed": found.seed,
        "survivors": [{"name": each.name, "does": each.words, "known": each.known or None} for each in found.survivors],
        "modules": {
            name: _numbers(figures) | {"survivors": figures.survivors} for name, figures in sorted(found.modules.items())
        },
    }


def show_generated(found: GeneratedFindings) -> None:
    """Print the table by module, then the survivors."""
    rows = [(name, *_row(figures)) for name, figures in sorted(found.modules.items())]
    which = f"a sample, seed {found.seed}" if found.sampled else "all"
    show_table(f"Generated mutants of the algorithms, {which}", COLUMNS, [*rows, ("all", *_row(found.figures))])
    for title, survivors in (
        ("Survivors that are in no list", found.unknown),
        ("Known survivors", [each for each in found.survivors if each.known and not each.broken]),
    ):
        if survivors:
            show(title)
        for each in survivors:
            limit = "" if each.complete else "a limit was reached; a larger one may catch it"
            why = f"the checker failed: {each.broken}" if each.broken else each.known or limit
            show(f"* {each.name}: {each.words}{why and f' ({why})'}")


def _numbers(figures: ModuleFigures) -> dict[str, Any]:
    return {
        "total": figures.total,
        "run": figures.run,
        "caught": figures.caught,
        "equivalent": figures.equivalent,
        "percent": round(figures.percent, 1),
    }


def _row(figures: ModuleFigures) -> tuple[object, ...]:
    numbers = _numbers(figures)
    return (*(numbers[name] for name in ("total", "run", "caught", "equivalent")), figures.survivors, numbers["percent"])
