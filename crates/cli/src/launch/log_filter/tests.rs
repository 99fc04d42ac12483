use super::*;

const EDGE_LINE: &str = "--------------------------------------------------------------------------\n";

/// What passes, and the rest.
fn filter_stream(text: &str) -> (String, StreamEnd) {
    let mut passed = Vec::new();
    let end = LogFilter::new(|| ()).pass(text.as_bytes(), &mut passed);
    (String::from_utf8(passed).unwrap(), end)
}

#[test]
fn a_banner_about_ended_processes_is_held() {
    let banner = format!(
        "{EDGE_LINE}MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD\nwith errorcode 1.\n\n{EDGE_LINE}"
    );
    let noise = "[vm:1] 1 more process has sent help message help-mpi-api.txt / mpi-abort\n";
    let (passed, end) = filter_stream(&format!("step 1\nerror: rank 1: no data\n{banner}{noise}step 2\n"));
    assert_eq!(passed, "step 1\nerror: rank 1: no data\nstep 2\n");
    assert_eq!(end.errors, ["error: rank 1: no data\n"]);
    assert_eq!(end.held.concat(), format!("{banner}{noise}"));
}

#[test]
fn other_banners_pass_whole() {
    let banner = format!("{EDGE_LINE}There are not enough slots available in the system\n{EDGE_LINE}");
    assert_eq!(filter_stream(&banner), (banner.clone(), StreamEnd::default()));
    let open = format!("{EDGE_LINE}a table\nits rows\n");
    assert_eq!(filter_stream(&open), (open.clone(), StreamEnd::default()));
    let long = format!("{EDGE_LINE}{}", "row\n".repeat(2 * LONGEST_BANNER));
    assert_eq!(filter_stream(&long), (long.clone(), StreamEnd::default()));
}

#[test]
fn an_error_inside_of_a_banner_passes() {
    let head = "Primary job  terminated normally, but 1 process returned\n";
    let (passed, end) = filter_stream(&format!("{EDGE_LINE}{head}error: rank 0: lost\n{EDGE_LINE}"));
    assert_eq!(passed, "error: rank 0: lost\n");
    assert_eq!(
        end,
        StreamEnd {
            errors: vec!["error: rank 0: lost\n".into()],
            held: vec![EDGE_LINE.into(), head.into(), EDGE_LINE.into()]
        }
    );
}

#[test]
fn equal_errors_pass_once() {
    let (passed, end) = filter_stream("error: a\nerror: b\nerror: a\n");
    assert_eq!(
        (passed.as_str(), end.errors),
        ("error: a\nerror: b\n", vec!["error: a\n".into(), "error: b\n".into()])
    );
}

#[test]
fn the_remarks_of_mpich_are_held_with_the_empty_line_before_them() {
    let edge = format!("{}\n", "=".repeat(83));
    let banner = format!("\n{edge}=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n{edge}");
    let (passed, end) = filter_stream(&format!("{{\"step\":1}}\n\nlast words\n{banner}"));
    assert_eq!(passed, "{\"step\":1}\n\nlast words\n");
    assert_eq!(end.held.concat(), banner);
}

#[test]
fn text_without_end_of_line_and_bytes_that_are_no_text_pass() {
    assert_eq!(filter_stream("half").0, "half");
    let mut passed = Vec::new();
    let end = LogFilter::new(|| ()).pass(&b"\xff\n"[..], &mut passed);
    assert_eq!((String::from_utf8(passed).unwrap().as_str(), end), ("\u{fffd}\n", StreamEnd::default()));
}

#[test]
fn the_indented_lines_of_an_error_belong_to_it() {
    let text = "  before\nerror: a\n  b\n  c\nstep 1\n  d\nerror: e\n";
    let (passed, end) = filter_stream(text);
    assert_eq!(
        (passed.as_str(), end.errors),
        (text, vec!["error: a\n  b\n  c\n".into(), "error: e\n".into()])
    );
}

#[test]
fn deaths_that_the_launcher_tells_of_count_like_errors() {
    for (text, deaths) in [
        ("step 1\n", 0),
        ("mpirun noticed that process rank 0 with PID 0 on node vm exited on signal 9 (Killed).\n", 1),
        ("=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n", 1),
        ("error: rank 1: no data\n", 1),
    ] {
        let mut calls = 0;
        LogFilter::new(|| calls += 1).pass(text.as_bytes(), &mut Vec::new());
        assert_eq!(calls, deaths, "{text}");
    }
}
