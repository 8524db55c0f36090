"""Reading exceptions of users' code: the text of one, and what a group holds."""

from collections.abc import Iterator


def text_of(error: BaseException) -> str:
    """Return the text of an exception. Whatever its `__str__` raises, this returns."""
    try:
        return str(error)
    except BaseException as broken:  # noqa: BLE001 - `SystemExit` from there would end the worker
        return f"(its text raised {type(broken).__name__})"


def leaves(error: BaseException) -> tuple[BaseException, ...]:
    """Return the exceptions in a group and in the groups inside it, each once. Another exception is its own only leaf."""
    return tuple(_leaves(error))


def _leaves(error: BaseException) -> Iterator[BaseException]:
    waiting, seen = [error], set[int]()  # a stack: groups can be nested deeper than Python recurses
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, BaseExceptionGroup):
            waiting.extend(reversed(each.exceptions))
        else:
            yield each
