"""Mutants generated from the syntax trees of the algorithms: a measure of what the checks can see."""
