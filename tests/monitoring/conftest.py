"""What these tests share."""

from tests.cli.conftest import onceonly

__all__ = ["onceonly"]
