"""A shift and a pair of limits, each recovered from the counts that it produced."""
