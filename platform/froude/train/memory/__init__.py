"""What a step keeps in memory, and what it computes in pieces or again instead."""
