//! Programs as text that tests of several crates run.

/// Device 1 asks, device 0 answers, device 1 takes the answer in: that message is under way from the start. A kernel
/// that asks has nothing to read.
pub const ECHO: &str = "program @echo {
  lane dev0 arena 128
    run receive [0 at 0 = 0 at 0 run 64] 1/0+64 -> 0+64 scratch 0+0 of \"question\" after 1/0
    run mix [] 0+64 -> 64+64 scratch 0+0 of \"answer\" carried 1/1
  lane dev1 arena 128
    run mix [] -> 0+64 scratch 0+0 of \"ask\" carried 0/0
    run receive [0 at 0 = 0 at 0 run 64] 0/64+64 -> 64+64 scratch 0+0 of \"reply\" after 0/1
}";
