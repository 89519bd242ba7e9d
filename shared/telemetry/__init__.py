"""What a process tells about itself: counts, durations, traces."""
