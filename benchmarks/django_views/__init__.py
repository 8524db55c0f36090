"""A view of Django with onceonly and without it: requests a second, and what a request costs on the wire."""
