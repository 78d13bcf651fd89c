"""Process tests: real relays and workers, real PostgreSQL and Kafka, real signals. `make prove CASE=... [PG=15|18]`."""
