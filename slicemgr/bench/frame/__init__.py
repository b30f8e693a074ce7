"""The parts that all experiments share: run folder, steps, guard, slivers, lock and cleanup."""
