"""A simulated vLLM server and GPU: a real process with real sockets whose pace comes from the roofline."""
