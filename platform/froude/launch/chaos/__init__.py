"""Chaos: a recipe trained under a seeded schedule of real failures, and a verdict on what came of it."""
