//! Every operator case that comes with this crate, on the reference and on the fast kernels.

use phalanx::Flavor;
use phalanx_bench::golden::{Outcome, built_in};

#[test]
fn operators_agree_with_pytorch() {
    for flavor in [Flavor::Reference, Flavor::Fast] {
        let mut passed = 0;
        for case in built_in() {
            let outcome =
                case.run(flavor, 2).unwrap_or_else(|error| panic!("{} ({flavor:?}): {error}", case.id));
            match outcome {
                Outcome::Passed => passed += 1,
                Outcome::Unsupported => panic!("{} is unsupported", case.id),
                Outcome::Failed(why) => panic!("{} ({flavor:?}): {why}", case.id),
            }
        }
        assert_eq!(passed, 399, "cases of supported operators");
    }
}
