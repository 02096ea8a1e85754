"""Commands that maintain a storage: forget, prune, verify, repair, policy, encrypt, rotate-key."""
