"""What a study's rows tell of its ladder of proxies, before laws are fitted to them."""
