"""Running of programs: compilation, batches, devices, processes, checkpoints, tables."""
