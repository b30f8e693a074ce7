"""Build disk images from recipes: packages, partitions and boot loader."""
