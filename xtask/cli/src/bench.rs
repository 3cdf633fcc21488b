//! `pagoda bench`: measures sparse policies, or a server. The parts that other measurements share are public.

pub mod measure;
pub mod median;
pub mod page;
pub mod percentiles;
pub mod plan;
pub mod policies;
pub mod serve;
pub mod workload;
