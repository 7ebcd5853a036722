"""Comparisons of presets: start, load and stop each in turn, keep what was measured, go on after a crash."""
