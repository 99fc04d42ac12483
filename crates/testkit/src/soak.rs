//! How many random cases a test tries: a tenth in an ordinary run, all of them in `cargo xtask soak --tests`.

/// All cases if `PHALANX_SOAK` is `1` in the environment, else a tenth of them.
pub fn cases(all: u64) -> u64 {
    scaled(all, std::env::var_os("PHALANX_SOAK").is_some_and(|value| value == "1"))
}

fn scaled(all: u64, soak: bool) -> u64 {
    if soak { all } else { all.div_ceil(10) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ordinary_run_has_a_tenth_and_at_least_one() {
        assert_eq!([1, 10, 300, 2001].map(|all| scaled(all, false)), [1, 1, 30, 201]);
        assert_eq!(scaled(2001, true), 2001);
    }
}
