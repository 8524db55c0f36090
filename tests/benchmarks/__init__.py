"""The benchmarks: their limits, their counts and tiny runs."""
