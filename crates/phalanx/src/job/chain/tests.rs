use super::*;

/// Rank 0 makes two tiles, sends them and goes on; rank 1 works on both. The sends share a lane, and so do the
/// arrivals.
const PAIR: [&str; 2] = [
    "program @pair {
  part 0 of 2 of 000000000000000000000000000000ab
  lane dev0 arena 192
    run work [] -> 0+64 scratch 0+0 of \"a\" carried 1/0
    run work [] -> 64+64 scratch 0+0 of \"b\" carried 1/1
    run work [] -> 128+64 scratch 0+0 of \"e\"
  lane dev0 beside 0
    run send [tag 0 rank 1 dev1 in 0 at 0 run 64] 0+64 -> scratch 0+0 of \"x\" after 0/0
    run send [tag 1 rank 1 dev1 in 0 at 0 run 64] 64+64 -> scratch 0+0 of \"y\" after 0/1
}",
    "program @pair {
  part 1 of 2 of 000000000000000000000000000000ab
  lane dev1 arena 256
    run work [] 0+64 -> 128+64 scratch 0+0 of \"c\" after 1/0
    run work [] 64+64 -> 192+64 scratch 0+0 of \"d\" after 1/1
  lane dev1 beside 0
    run arrive [tag 0 rank 0 dev0 in 0 at 0 run 64] -> 0+64 scratch 0+0 of \"x\" carried 0/0
    run arrive [tag 1 rank 0 dev0 in 0 at 0 run 64] -> 64+64 scratch 0+0 of \"y\" carried 0/1
}",
];

/// Ranks 0 and 1 send a tile each, which arrive on rank 2 together. Rank 0 also has a device with nothing to do.
const TRIO: [&str; 3] = [
    "program @trio {
  part 0 of 3 of 000000000000000000000000000000ab
  lane dev3 arena 64
  lane dev0 arena 64
    run work [] -> 0+64 scratch 0+0 of \"a\" carried 2/0
  lane dev0 beside 1
    run send [tag 0 rank 2 dev2 in 0 at 0 run 64] 0+64 -> scratch 0+0 of \"z\" after 1/0
}",
    "program @trio {
  part 1 of 3 of 000000000000000000000000000000ab
  lane dev1 arena 64
    run work [] -> 0+64 scratch 0+0 of \"b\" carried 1/0
  lane dev1 beside 0
    run send [tag 0 rank 2 dev2 in 0 at 0 run 64] 0+64 -> scratch 0+0 of \"z\" after 0/0
}",
    "program @trio {
  part 2 of 3 of 000000000000000000000000000000ab
  lane dev2 arena 128
    run work [] 0+128 -> scratch 0+0 of \"c\" after 1/0
  lane dev2 beside 0
    run arrive [tag 0 rank 0 dev0 in 0 at 0 run 64, tag 0 rank 1 dev1 in 0 at 64 run 64] -> 0+128 scratch 0+0 of \"z\" carried 0/0
}",
];

fn parse(texts: &[&str]) -> Vec<Program> {
    texts.iter().map(|text| text.parse().unwrap_or_else(|error| panic!("{error}"))).collect()
}

/// How far a rank is: runs launched, and for each lane its run, what is done there, and whether the next one has been
/// started.
fn at(launched: u64, lanes: &[(u64, u32, bool)]) -> Option<ProgressReport> {
    let at = |&(run, done, running): &(u64, u32, bool)| LaneProgress { run, done, running };
    Some(ProgressReport { launched, seconds: 60, lanes: lanes.iter().map(at).collect() })
}

fn printed(parts: &[Program], reports: &[Option<ProgressReport>], from: u32) -> Vec<String> {
    chain(parts, reports, from).iter().map(WaitLink::to_string).collect()
}

/// Rank 1 of the pair, which waits for its first message of a run.
fn waiting(run: u64) -> Option<ProgressReport> {
    at(run + 1, &[(run, 0, false), (run, 0, true)])
}

const C_WAITS: &str = "rank 1, device 1: work of c of step 1 waits for";
const X_ARRIVES: &str = "rank 1, device 1: arrive of x of step 1 waits for";
const SILENT: &str = " does not answer: it is stopped, dead or cut off";

#[test]
fn a_chain_ends_at_what_another_rank_computes() {
    let computes = at(1, &[(0, 0, true), (0, 0, false)]);
    let found = printed(&parse(&PAIR), &[computes, waiting(0)], 1);
    let sends = "rank 0, device 0: send of x of step 1 waits for";
    let culprit = "rank 0, device 0: work of a of step 1 is being executed";
    assert_eq!(found, [C_WAITS, X_ARRIVES, sends, culprit]);
}

#[test]
fn a_rank_that_says_nothing_is_where_a_message_should_come_from_or_go_to() {
    let parts = parse(&PAIR);
    let silent = |rank: u32| format!("rank {rank}{SILENT}");
    assert_eq!(printed(&parts, &[None, waiting(0)], 1), [C_WAITS, X_ARRIVES, &silent(0)]);
    // The next run waits for the send, too, but the oldest run counts.
    let sends = at(2, &[(1, 0, false), (0, 0, true)]);
    let send = "rank 0, device 0: send of x of step 1 waits for";
    assert_eq!(printed(&parts, &[sends, None], 0), [send, &silent(1)]);
    assert_eq!(printed(&parts, &[None, None], 1), [silent(1)]);
    // What does not fit the parts is as good as nothing.
    assert_eq!(printed(&parts, &[at(1, &[(0, 0, true)]), waiting(0)], 0), [silent(0)]);
    assert_eq!(printed(&[], &[waiting(0)], 0), [silent(0)]);
}

#[test]
fn a_rank_that_starts_no_further_run_is_told_from_one_that_has_not_ended_the_last() {
    let parts = parse(&PAIR);
    let links = |last: &'static str| {
        let [c, x, send] =
            ["rank 1, device 1: work of c", "rank 1, device 1: arrive of x", "rank 0, device 0: send of x"]
                .map(|what| format!("{what} of step 2 waits for"));
        [c, x, send, last.into()]
    };
    const IDLE: &str =
        "rank 0 has done all it was told and starts no further step: its main thread is busy or waits";
    let idle = at(1, &[(1, 0, false), (1, 0, false)]);
    assert_eq!(printed(&parts, &[idle.clone(), waiting(1)], 1), links(IDLE));
    assert_eq!(printed(&parts, &[idle, waiting(1)], 0), [IDLE]);
    assert_eq!(printed(&parts, &[at(0, &[(0, 0, false), (0, 0, false)]), None], 0), [IDLE]);
    let late = at(1, &[(0, 2, true), (1, 0, false)]);
    let culprit = "rank 0, device 0: work of e of step 1 is being executed";
    assert_eq!(printed(&parts, &[late, waiting(1)], 1), links(culprit));
}

#[test]
fn a_chain_goes_through_the_run_before() {
    let sends = at(2, &[(2, 0, false), (1, 0, true)]);
    let computes = at(2, &[(0, 0, true), (1, 0, false)]);
    let expected = [
        "rank 0, device 0: send of x of step 2 waits for",
        "rank 1, device 1: arrive of x of step 2 waits for",
        "rank 1, device 1: work of c of step 1 is being executed",
    ];
    assert_eq!(printed(&parse(&PAIR), &[sends, computes], 0), expected);
}

#[test]
fn a_message_that_both_have_started_is_under_way() {
    let parts = parse(&PAIR);
    let under_way =
        "rank 1, device 1: arrive of x of step 1: its message was started on both sides and does not arrive";
    let sends = at(1, &[(1, 0, false), (0, 0, true)]);
    assert_eq!(printed(&parts, &[sends, waiting(0)], 1), [C_WAITS, under_way]);
    let sent = at(1, &[(1, 0, false), (0, 1, false)]);
    assert_eq!(printed(&parts, &[sent, waiting(0)], 1), [C_WAITS, under_way]);
}

#[test]
fn what_waits_for_nothing_could_start() {
    let ready = at(1, &[(0, 1, false), (0, 1, false)]);
    let culprit = "rank 0, device 0: work of b of step 1 could start, but no thread of the rank does it";
    assert_eq!(printed(&parse(&PAIR), &[ready, None], 0), [culprit]);
}

#[test]
fn a_circle_ends_where_it_closes() {
    // The first message sent is the second one that arrives.
    let crossed = PAIR[1].replace("tag 0", "tag 9").replace("tag 1", "tag 0").replace("tag 9", "tag 1");
    let sends = at(1, &[(1, 0, false), (0, 0, true)]);
    let expected = [
        "rank 0, device 0: send of x of step 1 waits for",
        "rank 1, device 1: arrive of y of step 1 waits for",
        "rank 1, device 1: arrive of x of step 1 waits for",
        "rank 0, device 0: send of y of step 1 waits for",
        "rank 0, device 0: send of x of step 1 waits for itself: this is a bug",
    ];
    assert_eq!(printed(&parse(&[PAIR[0], &crossed]), &[sends, waiting(0)], 0), expected);
}

#[test]
fn of_several_messages_the_missing_one_counts() {
    let parts = parse(&TRIO);
    let sent = at(1, &[(0, 0, false), (1, 0, false), (1, 0, false)]);
    let computes = at(1, &[(0, 0, true), (0, 0, false)]);
    let sends = at(1, &[(1, 0, false), (0, 0, true)]);
    let ends = |zero: &Option<ProgressReport>, one: &Option<ProgressReport>| {
        let reports = [zero.clone(), one.clone(), at(1, &[(0, 0, false), (0, 0, true)])];
        printed(&parts, &reports, 2).split_off(2)
    };
    let of_rank_1 = [
        "rank 1, device 1: send of z of step 1 waits for",
        "rank 1, device 1: work of b of step 1 is being executed",
    ];
    assert_eq!(ends(&sent, &computes), of_rank_1);
    assert_eq!(ends(&None, &computes), of_rank_1, "what is missing for sure comes first");
    assert_eq!(ends(&None, &sends), [format!("rank 0{SILENT}")]);
    assert_eq!(ends(&sent, &None), [format!("rank 1{SILENT}")]);
}

#[test]
fn a_lane_without_operations_holds_nobody_up() {
    let computes = at(2, &[(0, 0, false), (1, 0, true), (1, 0, false)]);
    let culprit = "rank 0, device 0: work of a of step 2 is being executed";
    assert_eq!(printed(&parse(&TRIO), &[computes, None, None], 0), [culprit]);
}

#[test]
fn the_chain_of_a_rank_with_work_left_tells_most() {
    let parts = parse(&TRIO);
    let still =
        |seconds, report: Option<ProgressReport>| report.map(|report| ProgressReport { seconds, ..report });
    let idle = at(1, &[(0, 0, false), (1, 0, false), (1, 0, false)]);
    let works = at(1, &[(0, 0, true), (0, 0, false)]);
    let ended = at(1, &[(1, 0, false), (1, 0, false)]);
    let cases = [
        ([still(90, idle.clone()), still(70, works.clone()), still(80, works.clone())], 2),
        ([still(90, idle.clone()), works.clone(), works.clone()], 1),
        ([still(90, idle.clone()), works, None], 1),
        ([still(90, idle.clone()), ended.clone(), None], 2),
        ([idle, still(61, ended.clone()), ended], 1),
    ];
    for (reports, expected) in cases {
        assert_eq!(held_up(&parts, &reports), expected, "{reports:?}");
    }
}
