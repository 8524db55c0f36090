"""The main job, on real input: flights whose miles are counted exactly once, however often a process is killed."""
