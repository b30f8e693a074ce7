"""Disk images made from recipes: packages, partitions, boot loader."""
