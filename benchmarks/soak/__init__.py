"""A soak: a host runs for an hour, and what it holds is compared with limits from its configuration."""
