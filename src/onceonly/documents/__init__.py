"""What document systems share: the store, dedup store and tokens on compare-and-set, bulk requests, limits."""
