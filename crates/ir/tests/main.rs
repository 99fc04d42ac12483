//! The levels of the model: file tests, round trips, rules of operators.

mod build_errors;
mod files;
mod round_trip;
mod rules;
mod scenarios;
