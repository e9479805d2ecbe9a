"""From a program to a trace."""
