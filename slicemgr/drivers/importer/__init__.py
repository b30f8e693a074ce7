"""Foreign disk images: read in a confined process, checked, and unpacked into a base."""
