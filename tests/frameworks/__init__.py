"""Agents of other frameworks as bodies of runs, in the oldest and the newest version that an adapter supports."""
