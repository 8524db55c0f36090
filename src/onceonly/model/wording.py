"""Wording: names and numbers in a sentence."""


def an(name: str) -> str:
    """Give a name with its article. It goes by the letter: `a User`, `a UUID`, and so `a Upload` as well."""
    return f"{'an' if name[:1].lower() in set('aeio') else 'a'} {name}"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 record`, `2,000 records`. The plural of the noun must end in `s`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
