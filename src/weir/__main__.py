"""``python -m weir``: the command line, for when the ``weir`` script is not on the path."""

from weir.cli.app import main

main()
