"""The btrfs pool with its files and quotas, and the disks of virtual machines."""
