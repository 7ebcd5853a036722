"""A simulated vLLM server and GPU whose speed follows from the roofline."""
