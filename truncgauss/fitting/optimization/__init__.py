"""Minimisation of any loss, with constraints, checkpoints, error bars and a certificate."""
