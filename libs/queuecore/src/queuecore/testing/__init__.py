"""Tools for tests: never imported by a service."""
