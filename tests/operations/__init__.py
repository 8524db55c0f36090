"""Tests of what operators read and do."""
