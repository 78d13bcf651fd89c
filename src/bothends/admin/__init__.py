"""Every act of an operator, as step functions: the command line prints what they return, others may call them."""
