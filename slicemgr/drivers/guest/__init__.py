"""What is put inside a sliver: its files, its identity, keys, cloud-init seed and view of /proc."""
