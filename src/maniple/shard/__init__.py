"""From a program and a strategy to a sharded program."""
