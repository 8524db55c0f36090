"""What the tests with faults share."""

from tests.cli.conftest import onceonly

__all__ = ["onceonly"]
