"""From a study of proxies to the recipe of one large run: fits, gate, forecast and seal."""
