"""`python -m forbear` is the console script `forbear`."""

from __future__ import annotations

from forbear.server.cli import main

if __name__ == "__main__":
    main()
