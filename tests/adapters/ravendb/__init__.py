"""RavenDB's adapter without a server: URLs, what answers mean, and TLS."""
