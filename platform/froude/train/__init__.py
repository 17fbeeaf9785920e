"""Training: model, data, step and loop; torch only, the same under pytest, on one box and under a launcher."""
