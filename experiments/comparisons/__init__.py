"""Groups against a control, and a band for a curve, each with one error for all intervals."""
