"""One simulated run's parts: virtual time, the disk, faults, drivers and the auditor."""
