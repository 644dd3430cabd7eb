"""Webhooks: verdicts told to the addresses that clients gave.

``notice`` makes one from a verdict, ``courier`` claims and sends what is due, ``guard`` says where may be sent,
``deliver`` makes one attempt, ``sign`` signs it, ``schedule`` decides what comes next, ``log`` shows it to operators.
"""
