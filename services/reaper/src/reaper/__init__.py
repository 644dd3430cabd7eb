"""The reaper: gives the jobs of dead relays to others, and keeps the queues true (design §4, "reap")."""
