"""Decisions only: no I/O, no clock, no await. Everything here is a pure function or a table of states."""
