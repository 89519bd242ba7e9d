"""The reports of a process about itself: counts, durations, traces."""
