"""The main job, shown on the real thing: a host is shut down in mid-turn, the next one recovers the turn."""
