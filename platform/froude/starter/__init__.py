"""A new project of the user's own: what it is made of, and the files that `froude init` writes."""
