"""The embedded development stack: every service as a child process, on an embedded Valkey and a file store."""
