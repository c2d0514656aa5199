"""`python -m localmoe`."""

from localmoe.cli import main

main()
