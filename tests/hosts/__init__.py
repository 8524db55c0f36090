"""Applications of other frameworks, before and after onceonly, under kills."""
