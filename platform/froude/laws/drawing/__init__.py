"""Figures as data, and the one renderer that draws them: for notebooks, and in the colours of the report."""
