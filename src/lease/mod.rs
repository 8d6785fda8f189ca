//! Leases.
mod record;
mod wire;
