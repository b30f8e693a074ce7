"""Domains: their XML, their life by libvirt, their processes, consoles and screens."""
