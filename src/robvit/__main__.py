"""`python -m robvit`, for launchers that start modules."""

from robvit.cli import main

main()
