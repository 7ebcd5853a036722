"""`python -m vtop.sim`: a simulated vLLM server, or the router of a simulated P/D pair."""

import sys

from vtop.sim.options import parse
from vtop.sim.process import main

sys.exit(main(parse()))
