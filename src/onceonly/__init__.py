"""onceonly: message handlers whose effects happen exactly once."""
