"""The durable queue that relayq's services share.

The pure core (``job``, ``names``, ``errors``, ``retry``, ``clock``) knows no I/O; ``broker`` and ``blobs`` are the
contracts; ``redis``, ``storage``, ``crypto`` and ``telemetry`` are adapters that never import each other, except that
storage sits on crypto. docs/architecture/01-structure.md shows who may import whom.
"""
