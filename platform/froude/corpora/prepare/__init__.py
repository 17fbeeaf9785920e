"""From texts to shards: which pieces there are, their tokens, and how the tokens become shards."""
