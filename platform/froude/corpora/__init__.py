"""Corpora of tokens: how they are made of text, what is in them, whether they are what they were."""
