"""Laws of the loss in size and data: what is fitted, how sure it is, and which runs would make it surer."""
