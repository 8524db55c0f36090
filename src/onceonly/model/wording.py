"""Wording: how names of users' classes stand in a sentence."""


def an(name: str) -> str:
    """Give a name with its article. It goes by the letter: `a User`, `a UUID`, and so `a Upload` as well."""
    return f"{'an' if name[:1].lower() in set('aeio') else 'a'} {name}"
