"""What runs the core: the clock, the one main thread, and the driver that turns effects into calls of ports."""
