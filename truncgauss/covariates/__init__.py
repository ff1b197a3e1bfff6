"""What follows from a fit of rows: predictions, margins, residuals, outliers, contrasts."""
