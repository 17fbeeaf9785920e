"""Corpora of tokens: shards of any tool read where they lie, how shards are made of text, what is in them."""
