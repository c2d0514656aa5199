"""`python -m localmoe.cli`."""

from localmoe.cli import main

main()
