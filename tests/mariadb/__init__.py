"""The adapter for MariaDB."""
