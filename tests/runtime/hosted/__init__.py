"""Tests of what handles the messages of a host."""
