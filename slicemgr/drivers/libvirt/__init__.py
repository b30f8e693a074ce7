"""libvirt domains: their XML, life cycle, processes, consoles and screens."""
