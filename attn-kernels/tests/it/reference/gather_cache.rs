//! Refusals of `gather_cache`.
