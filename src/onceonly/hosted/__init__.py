"""Hosted delivery without I/O: from the messages of a host to the outcome of each. The model checker runs these modules."""
