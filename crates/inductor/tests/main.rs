//! The overlap passes on recorded, written and random cases.

mod golden;
mod naive;
mod random;
mod search_cases;

mod cases;
mod fsdp;
mod fx;
mod fx_defects;
mod greedy;
mod iterative;
mod iterative_defects;
mod iterative_random;
mod lists;
mod nccl;
mod search_graphs;
mod search_lists;
