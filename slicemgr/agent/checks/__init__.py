"""The checks of `slicectl doctor`, by subject."""
