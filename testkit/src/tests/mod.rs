//! Tests of the files that the unit tests of `leasehold` compile as well: here, so that they run once.

mod clock;
mod fault_store;
mod faults;
mod fronts;
mod jobs;
