from s3_server import place, s3, s3_server, unconditional_server

__all__ = ["place", "s3", "s3_server", "unconditional_server"]
