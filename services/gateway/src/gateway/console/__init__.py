"""The operator's pages on the admin port: plain HTML that works without JavaScript, and a small script to refresh it.

application   the routes, and how errors look
access        who is let in: Host, Origin, the session cookie; the headers of every answer
rendering     templates, and how times, sizes and texts are written
pages         what is shown
actions       what a form does
redrive       paced redrives, in the background
timeline      a record as the story of its job
"""
