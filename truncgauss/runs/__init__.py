"""Runs of experiments: settings, the work, its folder, its report and the table of a sweep."""
