"""Laws of the batch: the critical one, the rate that goes with it, and the noise of the gradient."""
