"""What a sweep decides, without Ray: which trial is next, what is stored, what it will take, how far it is."""
