"""The commands of slicectl, one module for each noun or group of verbs."""
