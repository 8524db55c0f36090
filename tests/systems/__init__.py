"""Tests of what systems share."""
