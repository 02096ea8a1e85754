"""Values and rules. No I/O, no clock, no threads: time, chance and ids are handed in."""
