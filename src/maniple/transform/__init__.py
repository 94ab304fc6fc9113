"""Passes from program to program; one pass, one file."""
