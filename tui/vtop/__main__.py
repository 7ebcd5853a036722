"""`python -m vtop`."""

from vtop.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
