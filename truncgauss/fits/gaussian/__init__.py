"""One Gaussian, or a Gaussian regression, behind rows that are known in part."""
