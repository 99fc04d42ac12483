//! `phalanx launch --max-restarts` with scripts that stand for a launcher: what is started again, and what is refused.
#![allow(clippy::unwrap_used)]

use crate::common::{Dir, SMALL, error, phalanx, script, script_of};

/// What the script notes of each start, one a line.
fn starts(dir: &Dir) -> Vec<String> {
    let text = std::fs::read_to_string(dir.path("starts")).unwrap();
    text.lines().map(str::to_string).collect()
}

/// A launcher that notes its arguments, and fails with `code` the first time.
fn fails_once(dir: &Dir, code: u8) -> String {
    let notes = dir.path("starts");
    let does =
        format!("echo \"$PHALANX_ATTEMPT: $*\" >>{notes}; [ $(wc -l <{notes}) = 1 ] && exit {code}; exit 0");
    script(dir, "mpirun", &does)
}

#[test]
fn a_restart_resumes_and_knows_its_number() {
    let dir = Dir::new("restarts-resume");
    let (mpirun, ck) = (fails_once(&dir, 205), dir.path("ck"));
    std::fs::create_dir_all(dir.path("ck/step-00000007")).unwrap();
    for (extra, added) in [(&[][..], " train --resume "), (&["--resume"], " train --checkpoint ")] {
        let mut command = phalanx();
        command.args(["launch", "-n", "2", "--mpirun", &mpirun, "--max-restarts", "1", "--", "train"]);
        let output = command.args(["--checkpoint", &ck]).args(extra).output().unwrap();
        let told =
            "restart 1 of 1: the launcher ended with exit code 205; going on after step 7 on 2 ranks\n";
        assert_eq!((output.status.code(), String::from_utf8(output.stderr).unwrap()), (Some(0), told.into()));
        let starts = starts(&dir);
        assert!(
            starts.len() == 2 && starts[0].starts_with(": ") && starts[1].starts_with("1: "),
            "{starts:?}"
        );
        assert!(starts[1].contains(added) && starts[1].contains(" -x PHALANX_ATTEMPT "), "{starts:?}");
        std::fs::remove_file(dir.path("starts")).unwrap();
    }
}

#[test]
fn ranks_of_a_launcher_that_dies_are_gone_before_the_next_one() {
    let dir = Dir::new("restarts-orphans");
    let pid = dir.path("pid");
    let first = format!("setsid tail -f /dev/null & echo $! >{pid}; kill -KILL $$");
    let mpirun =
        script(&dir, "mpirun", &format!("if [ -e {pid} ]; then kill -0 $(cat {pid}); exit; fi; {first}"));
    let job = ["--max-restarts", "3", "--", "train", "--checkpoint", &dir.path("ck")];
    let output = phalanx().args(["launch", "-n", "1", "--mpirun", &mpirun]).args(job).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.starts_with("restart 1 of 3: a rank was ended by signal 9; "), "{text}");
    assert!(text.contains("No such process"), "the orphan lives: {text}");
}

#[test]
fn a_host_that_no_longer_answers_is_left_out() {
    let dir = Dir::new("restarts-hosts");
    let (mpirun, ck, starts_file) = (fails_once(&dir, 205), dir.path("ck"), dir.path("starts"));
    let agent = script(&dir, "agent", &format!("[ ! -e {starts_file} ] || [ \"$1\" != b ]"));
    for (file, min_ranks, host, told) in [
        ("a:1\nb:1\n", &["--min-ranks", "1"][..], Some("-n 1 --host a:1 "), "on 1 rank, without b, which"),
        ("a:1\nb:1\nc:1\n", &[], Some("-n 2 --host a:1,c:1 "), "on 2 ranks, without b, which"),
        ("a:1\nb:1\n", &[], None, "b cannot be reached: the other hosts take 1 rank, --min-ranks is 2"),
    ] {
        let hosts = dir.write("hosts", file);
        let mut command = phalanx();
        command.args(["launch", "-n", "2", "--mpirun", &mpirun, "--hosts", &hosts, "--max-restarts", "1"]);
        command.args(min_ranks).args(["--", "train", "--plan", "dp", "--checkpoint", &ck]).args(SMALL);
        let output = command.env("OMPI_MCA_plm_rsh_agent", &agent).output().unwrap();
        let (text, starts) = (String::from_utf8(output.stderr).unwrap(), starts(&dir));
        assert!(text.contains(told), "`{told}` in: {text}");
        let expected = if host.is_some() { (Some(0), 2) } else { (Some(205), 1) };
        assert_eq!((output.status.code(), starts.len()), expected);
        if let Some(host) = host {
            assert!(starts[1].replace("--allow-run-as-root ", "").contains(host), "{starts:?}");
        }
        std::fs::remove_file(&starts_file).unwrap();
    }
}

/// `srun` starts the job, and asks nodes; the second one is lost in the first attempt.
#[test]
fn a_slurm_node_that_no_longer_answers_is_left_out() {
    let dir = Dir::new("restarts-slurm");
    let (ck, notes) = (dir.path("ck"), dir.path("starts"));
    script(&dir, "scontrol", "[ \"$*\" = 'show hostnames n[1-2]' ] && echo n1 && echo n2");
    let does = format!(
        "case \"$*\" in *' --nodelist n2 true') [ ! -e {notes} ];; *' --nodelist n1 true') ;;
         *) echo \"$*\" >>{notes}; [ $(wc -l <{notes}) = 2 ] || exit 205;; esac"
    );
    let srun = script_of(&dir, "srun", "slurm 23.11.4", &does);
    let mut command = phalanx();
    command.args(["launch", "-n", "2", "--mpirun", &srun, "--max-restarts", "1", "--min-ranks", "1", "--"]);
    command.args(["train", "--plan", "dp", "--checkpoint", &ck]).args(SMALL);
    let path = format!("{}:{}", dir.path(""), std::env::var("PATH").unwrap());
    let allocation = [("SLURM_JOB_ID", "7"), ("SLURM_JOB_NODELIST", "n[1-2]"), ("PATH", &path)];
    let output = command.envs(allocation).output().unwrap();
    let (text, starts) = (String::from_utf8(output.stderr).unwrap(), starts(&dir));
    assert!(text.contains("on 1 rank, without n2, which cannot be reached"), "{text}");
    assert_eq!((output.status.code(), starts.len()), (Some(0), 2), "{text}");
    assert!(starts[0].starts_with("-n 2 --cpu-bind=none "), "the allocation as it is: {starts:?}");
    assert!(starts[1].starts_with("-n 1 --nodes=1 --nodelist=n1 --cpu-bind=none "), "{starts:?}");
}

#[test]
fn mistakes_are_named() {
    let dir = Dir::new("restarts-wrong");
    let mpirun = script(&dir, "mpirun", "exit 1");
    let plan = dir.write("plan.toml", "");
    let file = dir.write("run.toml", "checkpoint = \"ck\"\n");
    let restarts = ["--max-restarts", "1"];
    let fewer = ["--max-restarts", "1", "--min-ranks", "1"];
    let job = ["--", "train", "--checkpoint", "ck"];
    for (flags, part) in [
        ([&restarts[..], &["--", "train"]].concat(), "add --checkpoint DIR to the job"),
        ([&restarts[..], &["--", "bench", "train"]].concat(), "--max-restarts is for jobs of `train`"),
        ([&["--min-ranks", "1"], &job[..]].concat(), "--max-restarts"),
        ([&restarts[..], &["--min-ranks", "3"], &job].concat(), "--min-ranks 3 is more than the 2 of -n"),
        ([&restarts[..], &["--min-ranks", "0"], &job].concat(), "0 is not in 1.."),
        ([&fewer[..], &job, &["--plan", &plan]].concat(), "plan.toml is a file"),
        ([&fewer[..], &job, &["--plan", "tp2"]].concat(), "as in `dp-tp2`"),
        (
            [&fewer[..], &job, &["--plan", "dp", "--devices", "3"]].concat(),
            "3 devices are not the same number on each of 2",
        ),
    ] {
        let message = error(&[&["launch", "-n", "2", "--mpirun", &mpirun][..], &flags].concat(), 2);
        assert!(message.contains(part), "`{part}` in: {message}");
    }
    // A field of the file serves as well as a flag.
    let job =
        ["launch", "-n", "2", "--mpirun", &mpirun, "--max-restarts", "1", "--dry-run", "--", "train", &file];
    assert!(phalanx().args(job).output().unwrap().status.success());
}
