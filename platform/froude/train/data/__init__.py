"""Where training windows come from: sources of tokens, the validation split, the order of the data."""
