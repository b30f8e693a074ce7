"""What every experiment needs: run folder, steps, guard, slivers, lock and cleanup."""
