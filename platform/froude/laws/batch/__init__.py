"""Laws of the batch: the critical one, the best rate at each, and the noise of the gradient."""
