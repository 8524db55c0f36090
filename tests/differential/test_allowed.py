"""What a handler can tell is documented for users, and nothing else is."""

from pathlib import Path

from tests.differential.allowed import ALLOWED

PAGE = Path(__file__).parents[2] / "docs/reference/databases.md"


def test_the_documented_list_is_the_list_of_the_test() -> None:
    """The table of the page, row by row."""
    section = PAGE.read_text().partition("## What a handler can tell\n")[2].partition("\n## ")[0]
    table = section.partition("| what |")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    assert rows == [list(each) for each in ALLOWED]
