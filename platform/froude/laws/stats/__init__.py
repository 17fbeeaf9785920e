"""What all laws share: frames read, robust fits, intervals, and the small values that they hand out."""
