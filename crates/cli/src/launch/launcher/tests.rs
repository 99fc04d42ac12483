use super::*;

/// A job of four ranks on this host.
fn job<'a>(command: &'a [OsString], variables: &'a [(String, OsString)]) -> Job<'a> {
    Job {
        ranks: 4,
        cores_per_rank: None,
        hosts: None,
        variables,
        is_allocated: false,
        is_root: false,
        command,
    }
}

fn line(kind: Kind, job: &Job<'_>) -> String {
    let launcher = Launcher { kind, program: "run".into() };
    launcher.command_line(job).iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
}

#[test]
fn versions_tell_the_kind() {
    for (text, kind) in [
        ("mpirun (Open MPI) 4.1.4\n\nReport bugs to …", Some(Kind::OpenMpi)),
        ("mpiexec (OpenRTE) 4.1.4", Some(Kind::OpenMpi)),
        ("HYDRA build details:\n    Version: 4.0.2", Some(Kind::Mpich)),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.9", Some(Kind::Mpich)),
        ("slurm 22.05.8", Some(Kind::Slurm)),
        ("make 4.3", None),
        ("", None),
    ] {
        assert_eq!(Kind::of_version(text), kind, "{text}");
    }
}

#[test]
fn command_lines_of_one_host() {
    let (command, variables) =
        (["phalanx", "train"].map(Into::into), [("PHALANX_LOG".into(), "two words".into())]);
    let job = job(&command, &variables);
    assert_eq!(
        line(Kind::OpenMpi, &job),
        "run -n 4 --map-by slot:OVERSUBSCRIBE --bind-to none --stdin none -x PHALANX_LOG phalanx train"
    );
    assert_eq!(line(Kind::Mpich, &job), "run -n 4 -bind-to none -genv PHALANX_LOG two words phalanx train");
    assert_eq!(
        line(Kind::Slurm, &job),
        "run -n 4 --cpu-bind=none --export=ALL --input=none --kill-on-bad-exit=1 phalanx train"
    );
}

#[test]
fn command_lines_of_several_hosts_and_bound_ranks() {
    let command = ["phalanx".into()];
    let hosts = [("a", 3), ("b", 1)].map(|(host, ranks)| Share { host: host.into(), ranks });
    let on = Job { hosts: Some(&hosts), cores_per_rank: Some(8), ..job(&command, &[]) };
    assert_eq!(
        line(Kind::OpenMpi, &on),
        "run -n 4 --host a:3,b:1 --map-by slot:PE=8 --bind-to core --stdin none phalanx"
    );
    assert_eq!(line(Kind::Mpich, &on), "run -n 4 -hosts a:3,b:1 -bind-to core:8 phalanx");
    assert_eq!(
        line(Kind::Slurm, &on),
        "run -n 4 --nodes=2 --nodelist=a,b --cpus-per-task=8 --cpu-bind=cores --export=ALL --input=none \
         --kill-on-bad-exit=1 phalanx"
    );
}

#[test]
fn open_mpi_keeps_to_what_a_batch_system_gave_and_lets_root_run() {
    let command = ["phalanx".into()];
    let allocated = Job { is_allocated: true, ..job(&command, &[]) };
    assert_eq!(line(Kind::OpenMpi, &allocated), "run -n 4 --map-by slot --bind-to none --stdin none phalanx");
    let hosts = [Share { host: "a".into(), ranks: 4 }];
    let hosts = Job { hosts: Some(&hosts), is_root: true, ..job(&command, &[]) };
    assert_eq!(
        line(Kind::OpenMpi, &hosts),
        "run -n 4 --allow-run-as-root --host a:4 --map-by slot --bind-to none --stdin none phalanx"
    );
}

#[test]
fn a_launcher_that_is_none_is_named() {
    let Err(Failure::Input(message)) = Launcher::find(Some(Path::new("/nonexistent/mpirun")), false) else {
        panic!("found")
    };
    assert!(message.starts_with("cannot run the launcher `/nonexistent/mpirun`: "), "{message}");
    let Err(Failure::Input(message)) = Launcher::find(Some(Path::new("echo")), false) else {
        panic!("found")
    };
    assert!(message.ends_with("neither Open MPI nor MPICH nor Slurm"), "{message}");
}
