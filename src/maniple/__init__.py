"""Take a training step as it is, shard it by a strategy, run it as tasks, get the numbers of one device."""
