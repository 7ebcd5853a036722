"""vtop: a terminal dashboard and control panel for vLLM."""

__version__ = "0.1.0"
