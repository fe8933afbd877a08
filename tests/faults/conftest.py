"""Tests of this family run in seeded rounds."""

from __future__ import annotations

from tests.faults.rounds import give_seeds as pytest_generate_tests

__all__ = ["pytest_generate_tests"]
