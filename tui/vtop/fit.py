"""Does a model fit a card, how fast can it be there, and what is worth turning on."""
