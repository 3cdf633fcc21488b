//! Refusals of `swap_blocks`.
