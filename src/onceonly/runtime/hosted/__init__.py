"""Hosted delivery: a host receives and acknowledges messages, and an endpoint handles them."""
