"""The crash explorer: what becomes of a service when something goes wrong at each place where it can."""
