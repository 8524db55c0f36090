"""A crash point of a test that runs at all of them."""


class EveryCrashPoint(str):
    """One of all crash points, from the fixture `onceonly_crash_point`. A run that does not reach it is skipped."""

    __slots__ = ()
