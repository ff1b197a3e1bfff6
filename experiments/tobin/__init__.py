"""Tobin's table of durable goods, fitted by the model that has his name."""
