"""The protocol core: machines that take events and the time and return effects. No Spark, clock,
thread or chance."""
