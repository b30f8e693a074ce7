"""The systems that `slicectl bench peers` compares with, and how each is driven."""
