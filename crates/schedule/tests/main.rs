//! Schedules of written, random and trained steps.

mod generate;
mod meaning;
mod steps;
mod training;

mod devices;
mod files;
mod pipelines;
mod recompute;
mod schedules;
mod search;
