"""The btrfs pool, its files and quotas, and the disks of virtual machines."""
