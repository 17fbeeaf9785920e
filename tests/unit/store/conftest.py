from s3_server import place, refusing_server, s3, s3_server, unconditional_server

__all__ = ["place", "refusing_server", "s3", "s3_server", "unconditional_server"]
