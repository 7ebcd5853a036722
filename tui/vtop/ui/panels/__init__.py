"""The parts of the dashboard as pure functions: a snapshot and a size in, rows out. No widget, no clock, no service."""
