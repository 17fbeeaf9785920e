"""Which proxies to run next for a forecast, and the search space of them."""
