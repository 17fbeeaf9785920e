"""What runs on a cluster; the only home of Ray."""
