"""Time and memory of one probability under a large dense covariance."""
