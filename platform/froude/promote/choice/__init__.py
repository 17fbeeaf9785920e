"""What a recipe is chosen to be, knob by knob, with where each value is from and what it costs if it is wrong."""
