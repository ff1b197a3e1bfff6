"""Names and numbers as users write them, and sentences about them."""
