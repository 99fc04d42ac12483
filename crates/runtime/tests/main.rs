//! Events, tasks, lanes and replays. Graphs, flows and networks have binaries of their own; so have the tests of
//! allocations, whose allocator counts for the whole process.

mod plain;

mod events;
mod groups;
mod lanes;
mod replay;
mod tasks;
mod waits;
