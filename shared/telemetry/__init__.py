"""What a process reports about itself: counts, durations, traces."""
