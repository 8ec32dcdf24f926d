"""`python -m semel`: the `semel` command, where scripts are not on the path."""

from semel.cli import main

main()
