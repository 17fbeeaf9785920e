"""Laws of the learning rate: its curve at one size, and how its optimum moves with size."""
