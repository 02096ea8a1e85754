"""Values and rules without I/O, clock or threads: time, chance, ids are handed in."""
