"""Scores to numbers, intervals and reports."""
