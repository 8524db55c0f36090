"""`python -m onceonly`: the command line."""

from onceonly.cli import main

main()
