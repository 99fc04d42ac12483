//! Which threads are kept on which cores.

use phalanx_kernels::Team;
use phalanx_kernels::spmd::pin::{allowed_cores, keep_on};
use serde::{Deserialize, Serialize};

/// Whether threads are kept on cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pin {
    /// Wherever the system lets us.
    #[default]
    Auto,
    /// The system may move them.
    Off,
}

impl Pin {
    /// Keeps the calling thread, and those it starts from now on, on `cores`; whether it is so.
    pub fn apply(self, cores: &[usize]) -> bool {
        self == Pin::Auto && keep_on(cores)
    }

    /// A team of `cores` for each of `devices`.
    ///
    /// Every member has a core of its own if together they need all that this process may use. If they need fewer, the
    /// rest of the machine belongs to other processes, which may be there first; if more, the system shares them out
    /// better.
    pub fn teams(self, devices: usize, cores: usize) -> Vec<Team> {
        let allowed = allowed_cores();
        if self == Pin::Off || allowed.len() != devices * cores {
            return (0..devices).map(|_| Team::new(cores)).collect();
        }
        allowed.chunks_exact(cores).map(Team::pinned).collect()
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Where the blocks of a launch over all members run.
    fn homes(team: &Team) -> Vec<Vec<usize>> {
        let homes = Mutex::new(vec![]);
        let barrier = std::sync::Barrier::new(team.cores());
        team.run(team.cores(), &|_, member| {
            barrier.wait();
            homes.lock().expect("no member panics").push((member, allowed_cores()));
        });
        let mut homes = homes.into_inner().expect("no member panics");
        homes.sort_unstable();
        homes.into_iter().map(|(_, cores)| cores).collect()
    }

    #[test]
    fn members_have_cores_of_their_own_if_they_need_all() {
        let all = allowed_cores();
        let single: Vec<_> = all.iter().map(|core| vec![*core]).collect();
        for (devices, cores) in [(1, all.len()), (all.len(), 1)] {
            let teams = Pin::Auto.teams(devices, cores);
            // Each on a thread of its own, as devices run.
            let on = |team: &Team| std::thread::scope(|scope| scope.spawn(|| homes(team)).join().unwrap());
            assert_eq!(teams.iter().flat_map(on).collect::<Vec<_>>(), single);
        }
        let free = |pin: Pin, cores| pin.teams(1, cores).iter().flat_map(homes).all(|cores| cores == all);
        assert!(free(Pin::Auto, all.len() + 1) && free(Pin::Off, all.len()));
        assert_eq!(allowed_cores(), all, "the thread that launched on an unpinned team is left alone");
    }
}
