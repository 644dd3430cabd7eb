"""One module per pass; each is bounded and works on one queue, or on the server or store as a whole."""
