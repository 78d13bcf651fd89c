"""What other libraries need beside the public API: one module per library, imported only by who uses it."""
