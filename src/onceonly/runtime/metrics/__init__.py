"""Metrics: what is counted, where the numbers are stored so that a kill loses none, and the observer that counts."""
