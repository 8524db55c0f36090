"""Records of runs in SQL databases."""

from onceonly.ports.run_markers import BEGUN
from onceonly.sql.store import SqlRunMarkers
from tests.conformance.run_markers_contract import MESSAGE, check
from tests.sql.every_database import emptied
from tests.sql.harness import counted


async def test_runs_are_recorded_until_they_end(place: str) -> None:
    """By the database's own clock."""
    async with emptied(place) as database:
        await check(lambda lasts: SqlRunMarkers(database, "shop", lasts=lasts))


async def test_endpoints_do_not_share_runs(place: str) -> None:
    """One database serves several."""
    async with emptied(place) as database:
        assert await SqlRunMarkers(database, "shop", lasts=60).begin(MESSAGE, 0) == BEGUN
        assert await SqlRunMarkers(database, "billing", lasts=60).begin(MESSAGE, 0) == BEGUN
        assert await counted(database, "starts") == 2
