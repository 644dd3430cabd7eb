"""What can be seen of a running process: logs, metrics, health, traces."""
