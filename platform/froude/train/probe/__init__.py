"""What is measured of a model and its corpus outside of a run: its contract, its coordinates, single updates."""
