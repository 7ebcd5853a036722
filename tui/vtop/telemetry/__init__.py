"""Readings: /metrics pages, GPUs and the host, windows, history, recording."""
