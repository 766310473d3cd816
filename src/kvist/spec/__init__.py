"""Facts and arithmetic about models and caches: no arrays, no files, no compiler."""
