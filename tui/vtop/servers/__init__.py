"""Processes: starting, adopting, watching and stopping servers."""
