"""Our own optimizer classes, where no library has one that is right when sharded; each takes groups, as torch's do."""
