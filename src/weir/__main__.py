"""``python -m weir``: the command line, for when the ``weir`` script is not on ``PATH``."""

from weir.cli.app import main

main()
