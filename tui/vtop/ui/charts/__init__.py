"""Charts as rows of text: plotext where there are axes, braille and blocks where something is always on."""
