"""The description of the public port: an OpenAPI 3.1 document, and a page that shows it without any network."""
