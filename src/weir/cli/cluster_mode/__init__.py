"""``weir run --deploy-mode cluster``, on the machine where the command is given."""
