"""Checks of plans and results against what one device computes."""
