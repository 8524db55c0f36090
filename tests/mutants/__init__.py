"""Generated mutants of the adapters, and the rules that catch them. Developers run `python -m tests.mutants ADAPTER`."""
