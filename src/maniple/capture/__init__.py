"""From a framework's training step to a program; one package per framework."""
