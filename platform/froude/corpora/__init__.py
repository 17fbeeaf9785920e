"""Token shards of other tools, read where they lie: files, their formats, and the stream of tokens that they make."""
