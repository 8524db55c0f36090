"""Who ends the processes of a world that crash."""

from enum import Enum


class Supervision(Enum):
    """Who ends a process that crashes: itself, or its supervisor on purpose, as at a stop that takes too long."""

    SEES = "the supervisor sees every death"
    KILLS = "the supervisor kills processes itself"
