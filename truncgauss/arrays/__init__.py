"""Arrays of JAX: pytrees, linear algebra, batches, compilation, devices, keys."""
