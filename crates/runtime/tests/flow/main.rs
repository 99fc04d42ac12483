//! Flows: what is declared is what a run obeys, bad flows are refused with a message that helps, and layouts are as
//! small as promised.

mod checker;
mod declared;
mod errors;
mod machine;
mod nest;
mod programs;
mod random;
mod shape;
