"""Any loss over any pytree: gradient steps by optax, constraints, errors and certificates."""
