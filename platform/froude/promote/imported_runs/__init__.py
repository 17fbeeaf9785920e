"""Runs that froude did not train: from a table of them to a study with stages of role `history`."""
