"""Saved runs, their comparison, and reports."""
