"""Runs that a user's own command trains: started and watched here, written as jobs, or only followed. No Ray here."""
