//! Barriers, reservations, memories, instances and copies.

#[path = "../../runtime/tests/plain/mod.rs"]
mod plain;

mod barriers;
mod copies;
mod device_graphs;
mod indexed;
mod instances;
mod memories;
mod operations;
mod reservations;
mod turns;
