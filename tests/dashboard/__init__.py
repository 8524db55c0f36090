"""The operations dashboard: its gate, its pages in a browser, and what they know."""
