"""``python -m relayq`` is the ``relayq`` command."""

from relayq.command import main

main()
