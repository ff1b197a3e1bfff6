"""Diagnosis of derivatives: the operation that produced the first nonfinite number."""
