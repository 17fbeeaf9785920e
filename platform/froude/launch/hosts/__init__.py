"""Which hosts take part in a run, and how its workers on them find each other."""
