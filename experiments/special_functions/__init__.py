"""Accuracy of the normal distribution in one dimension, in four libraries."""
