"""Everything that knows vLLM's own words, and in which version they changed."""
