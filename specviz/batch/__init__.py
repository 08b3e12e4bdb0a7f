"""Many runs in the target's passes at once: pages of keys and values, a scheduler, and a record of every pass.

`record` is what a page or a file sees of a batch, `pages` who owns which page, `paged_cache` the keys and values in
them, `scheduler` who gets into the next pass.
"""
