"""Makes it run: workers and their pace, processes and the watchdog, logs, the observer seam, and crash points."""
