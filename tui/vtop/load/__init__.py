"""The load generator: what to send, when, and what came back."""
