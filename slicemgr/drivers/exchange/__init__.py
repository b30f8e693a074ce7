"""Blocks of images between nodes: TLS with peers, in a confined process."""
