"""The documentation: its snippets run, its facts match the code."""
