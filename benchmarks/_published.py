def tables() -> list[str]:
    return []
