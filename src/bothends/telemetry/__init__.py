"""What leaves the process about its work: logs."""
