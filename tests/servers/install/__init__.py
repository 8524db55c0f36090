"""`make servers`: installs and starts the servers of the tests. It needs nothing but Python, because there is no .venv yet."""
