"""The library under attack: foreign clients, raw frames, a proxy, odd handlers and lost hosts."""
