"""Until when slices live: reminders, ends, and the clock that they go by."""
