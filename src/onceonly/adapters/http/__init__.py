"""Other services over HTTP, through httpx."""
