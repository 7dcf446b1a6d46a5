"""Figures that need more than one trajectory's outcome: several samples of a question, and whom calls go to."""
