"""Why a learning rate does not transfer over width."""
