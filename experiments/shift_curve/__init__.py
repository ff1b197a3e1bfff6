"""The fraction inside limits and its gradient along a shift of the mean: naive, soft and exact."""
