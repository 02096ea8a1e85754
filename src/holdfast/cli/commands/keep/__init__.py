"""Commands that maintain a storage: forget, prune, verify, repair, policy, rotate-key."""
