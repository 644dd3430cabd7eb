"""One module a group of routes. Handlers see ``gateway.edge.Edge`` and never an adapter."""
