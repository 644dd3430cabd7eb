"""The HTTP edge of relayq: takes files, gives status and results, and lets an operator in."""
