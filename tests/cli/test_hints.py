"""Advice that can be pasted: what a command was given stands in the commands that its errors name."""

import shlex

import pytest

from onceonly.cli.hints import pasteable
from tests.cli.terminal import Terminal

CREATE = "run `onceonly schema create module:endpoint`"
DECLARE = "`onceonly topology create module:endpoint` makes it"


@pytest.mark.parametrize(
    ("text", "arguments", "told"),
    [
        (CREATE, ["run", "shop:shop", "--health", "localhost:80"], "run `onceonly schema create shop:shop`"),
        (CREATE, ["send", "orders.jsonl", "--to", "shop:shop"], "run `onceonly schema create shop:shop`"),
        (CREATE, ["dead", "list", "sqlite:///shop.db"], "run `onceonly schema create sqlite:///shop.db`"),
        (CREATE, ["dead", "list", "postgresql://u:secret@h/d"], "run `onceonly schema create URL`"),
        (CREATE, ["dead", "list", "mongodb://h/d?authToken=secret"], "run `onceonly schema create URL`"),
        (CREATE, ["send", "--to", "shop"], CREATE),
        (
            CREATE,
            ["status", "--store=sqlite:///a.db?prefix=x_", "shop:shop", "--transport", "amqp://u:secret@h/"],
            "run `onceonly schema create shop:shop --store 'sqlite:///a.db?prefix=x_' --transport URL`",
        ),
        (
            DECLARE,
            ["status", "shop:shop", "--store", "sqlite:///a.db", "--transport", "sqlite:///b.db"],
            "`onceonly topology create shop:shop --transport sqlite:///b.db` makes it",
        ),
        (DECLARE, ["send", "--transport", "sqlite:///b.db", "--to", "shop"], DECLARE),
        ("name it as module:endpoint", ["send", "--to", "shop:shop"], "name it as module:endpoint"),
    ],
)
def test_a_command_in_an_error_is_about_what_the_command_line_named(text: str, arguments: list[str], told: str) -> None:
    """Only there, and without what may be a secret."""
    assert pasteable(text, arguments) == told


@pytest.mark.parametrize(
    ("about", "named"),
    [("endpoint 'mailer' cannot", "shop:mailer"), ("no file sqlite:///mail.db", "shop:mailer"), ("whatever", "shop:shop")],
)
@pytest.mark.usefixtures("onceonly")
def test_of_several_endpoints_the_one_that_it_is_about_is_named(about: str, named: str) -> None:
    """By its name or by one of its places; the first where that cannot be told."""
    assert pasteable(f"{about}: {CREATE}", ["run", "shop:shop", "shop:mailer"]).endswith(f"create {named}`")


def test_what_an_error_advises_works_when_it_is_pasted(onceonly: Terminal) -> None:
    """The command that was refused works after it."""
    (onceonly.folder / "new.db").touch()
    run = ("run", "shop:shop", "--drain", "--store", "sqlite:///new.db?create=false", "--transport", "sqlite:///new.db")
    refused = onceonly(*run)
    assert refused.code == 2
    _, *advice = shlex.split(refused.error.split("`")[1])
    assert onceonly(*advice).code == 0
    assert onceonly(*run).code == 0
