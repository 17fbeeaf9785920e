"""What makes a step quicker or shows where its time goes, and changes no result."""
