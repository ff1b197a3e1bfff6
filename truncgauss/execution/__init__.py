"""Where and how programs run: compilation, batches, devices, processes, checkpoints, tables."""
