//! Parts that do not fit together or wait in a circle, and certificates as text.

use phalanx_program::{ARRIVE, Certificate, CertificateError, Operation, Program, SEND, Wait};

use crate::whole::random_whole;
use crate::{Random, random_placement};

/// Rank 0 makes two tiles and sends them, rank 1 works on both. The sends share a lane, and so do the arrivals.
const PAIR: [&str; 2] = [
    "program @pair {
  part 0 of 2 of 000000000000000000000000000000ab
  lane dev0 arena 256
    run work [] -> 0+64 scratch 0+0 of \"a\" carried 1/0
    run work [] -> 64+64 scratch 0+0 of \"b\" carried 1/1
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

/// What the verifier or the certificate says.
fn check(texts: &[String]) -> Result<Certificate, String> {
    let parts = texts.iter().map(|text| text.parse::<Program>());
    let parts = parts.collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string())?;
    Certificate::new(&parts).map_err(|errors| errors[0].to_string())
}

/// The pair with two lines swapped, counted from 0.
fn swapped(rank: usize, one: usize, other: usize) -> [String; 2] {
    let mut texts = PAIR.map(String::from);
    let mut lines: Vec<&str> = PAIR[rank].lines().collect();
    lines.swap(one, other);
    texts[rank] = lines.join("\n");
    texts
}

#[test]
fn the_pair_is_certified() {
    let certificate = check(&PAIR.map(String::from)).unwrap();
    assert_eq!((certificate.whole(), certificate.posted()), (0xab, &[64, 64][..]));
    assert_eq!(certificate.devices(), [(0, 0), (1, 1)]);
    let turns: u32 = certificate.turns().iter().map(|turn| turn.count).sum();
    assert_eq!(turns, 8, "every operation has its turn");
}

#[test]
fn every_change_of_the_pair_is_refused() {
    let send = "rank 0: operation 0 of lane 1 (send of x)";
    let mismatch = |sent: &str, to: u32, taken: &str| {
        format!(
            "message 0: {send} has {sent} for dev{to}, but rank 1: operation 0 of lane 1 (arrive of x) has {taken}"
        )
    };
    let cases: Vec<(usize, &str, &str, String)> = vec![
        // Waits.
        (0, " after 0/1", "", "nothing orders the two: one must wait for the other".into()),
        (0, " carried 1/1", "", "may overtake operation 1 of lane 1 (send of y) of the run before".into()),
        (1, " after 1/1", "", "nothing orders the two: one must wait for the other".into()),
        (1, " carried 0/0", "", "(arrive of x) may overtake operation 0 of lane 0".into()),
        // Tags, sizes, devices, ranks.
        (1, "[tag 0", "[tag 2", "(arrive of x): message 2 from rank 0 has no end there".into()),
        (1, "[tag 1", "[tag 0", "(arrive of y): tag 0 is used twice with rank 0".into()),
        (0, "run 64] 0+64", "run 60] 0+64", mismatch("60 bytes of dev0", 1, "64 bytes of dev1 from dev0")),
        (
            0,
            "[tag 0 rank 1 dev1",
            "[tag 0 rank 1 dev2",
            mismatch("64 bytes of dev0", 2, "64 bytes of dev1 from dev0"),
        ),
        (0, "rank 1 dev1", "rank 2 dev1", "rank 2 is not another one of 2 ranks".into()),
        (0, "rank 1 dev1", "rank 0 dev1", "rank 0 is not another one of 2 ranks".into()),
        (0, "rank 1 dev1", "rank 1 dev0", "message 0 with rank 1 is with its own device dev0".into()),
        // Places.
        (
            0,
            "at 0 run 64] 0+64",
            "at 4 run 64] 0+64",
            "overlaps itself or leaves its slice of 64 bytes".into(),
        ),
        (
            0,
            "at 0 run 64] 0+64",
            "at 0/4 run 8 x 2] 0+64",
            "overlaps itself or leaves its slice of 64 bytes".into(),
        ),
        (0, "in 0 at 0 run 64] 0+64", "in 1 at 0 run 64] 0+64", "message 0 names slice 1 of 1".into()),
        (
            0,
            "at 0 run 64] 0+64",
            "at 0/4 run 64] 0+64",
            "a place has 1 strides for 0 dimensions of runs".into(),
        ),
        (0, "at 0 run 64] 0+64", "at 0 64] 0+64", "expected `run` before `64] 0+64".into()),
        (0, "at 0 run 64] 0+64", "at 0/x run 64] 0+64", "`0/x` is not a place like 64/16/4".into()),
        (0, "at 0 run 64] 0+64", "at 0/1/1/1/1/1/1/1 run 64] 0+64", "and at most 6 strides".into()),
        (0, "0+64 -> scratch", "0+64 -> 128+64 scratch", "a send only reads".into()),
        (0, "64+64 -> scratch 0+0", "64+64 -> scratch 128+64", "a send only reads".into()),
        (1, "-> 0+64", "128+64 -> 0+64", "an arrival only writes".into()),
        (
            0,
            "run send [tag 0 rank 1 dev1 in 0 at 0 run 64]",
            "run work [1, 0]",
            "may run nothing but `receive`, `send` and `arrive`".into(),
        ),
        // Parts.
        (0, "part 0 of 2", "part 0 of 3", "number 0 of 2 parts is part 0 of 3 of `pair`".into()),
        (1, "part 1 of 2", "part 2 of 2", "there is no part 2 of 2: parts are counted from 0".into()),
        (1, "00ab", "00ac", "of program 000000000000000000000000000000ac, that of rank 0 is of 0".into()),
        (
            1,
            "  part 1 of 2 of 000000000000000000000000000000ab\n",
            "",
            "only a part of a program sends".into(),
        ),
    ];
    for (rank, from, to, expected) in cases {
        let mut texts = PAIR.map(String::from);
        texts[rank] = texts[rank].replacen(from, to, 1);
        assert_ne!(texts[rank], PAIR[rank], "{from} is in the text");
        let error = check(&texts).expect_err("refused");
        assert!(error.contains(&expected), "{from} to {to}: {error}");
    }
    let twice = PAIR
        .map(|text| text.replace("dev0 in", "dev7 in").replace("dev1 in", "dev7 in").replace("dev1", "dev0"));
    assert_eq!(check(&twice).unwrap_err(), "device dev0 is on rank 0 and on rank 1: it must be on one");
    let reversed = [PAIR[1], PAIR[0]].map(String::from);
    assert!(check(&reversed).unwrap_err().contains("number 0 of 2 parts is part 1 of 2 of `pair`"));
    assert!(check(&[PAIR[0].into()]).unwrap_err().contains("number 0 of 1 parts is part 0 of 2"));
}

#[test]
fn reordered_lanes_are_refused() {
    // The sends of rank 0, the arrivals of rank 1: all wait for the one before the other.
    for (rank, one, other) in [(0, 6, 7), (1, 6, 7)] {
        let texts = swapped(rank, one, other).map(|text| match rank {
            // The carried waits follow what they are for.
            0 => text
                .replace("carried 1/0", "carried 1/x")
                .replace("carried 1/1", "carried 1/0")
                .replace("1/x", "1/1"),
            _ => {
                text.replace("after 1/0", "after 1/x").replace("after 1/1", "after 1/0").replace("1/x", "1/1")
            }
        });
        let error = check(&texts).expect_err("a circle");
        assert!(error.starts_with("without buffers these wait for each other in a circle: "), "{error}");
        for place in ["rank 0: operation 0 of lane 1 (send", "rank 1: operation 0 of lane 1 (arrive"] {
            assert!(error.contains(place), "{error}");
        }
    }
    // Work that comes in another order than what it waits for would be overtaken by the next run.
    for rank in 0..2 {
        let error = check(&swapped(rank, 3, 4)).expect_err("waits name the wrong operation");
        assert!(error.contains("nothing orders") || error.contains("overtake"), "{error}");
    }
}

/// Each rank sends before it takes in: both wait for ever if nothing is buffered.
#[test]
fn ranks_that_all_send_first_are_refused_with_the_circle() {
    let ring = |sends_first: &[bool]| {
        let parts = (0..).zip(sends_first).map(|(rank, sends_first)| {
            let (to, from) = ((rank + 1) % 3, (rank + 2) % 3);
            let send =
                format!("run send [tag 0 rank {to} dev{to} in 0 at 0 run 64] 0+64 -> scratch 0+0 of \"s\"");
            let arrive = format!(
                "run arrive [tag 0 rank {from} dev{from} in 0 at 0 run 64] -> 64+64 scratch 0+0 of \"a\""
            );
            let (one, other) = if *sends_first { (send, arrive) } else { (arrive, send) };
            let text = format!(
                "program @ring {{\npart {rank} of 3 of 0\nlane dev{rank} arena 128\n{one}\n{other}\n}}"
            );
            text.parse::<Program>().unwrap_or_else(|error| panic!("{text}: {error}"))
        });
        Certificate::new(&parts.collect::<Vec<_>>())
    };
    let errors = ring(&[true; 3]).unwrap_err();
    let [CertificateError::Circle { operations }] = &errors[..] else { panic!("{errors:?}") };
    let expected = |rank: u32, position: u32, kernel: &str| {
        format!("rank {rank}: operation {position} ({kernel} of {})", &kernel[..1])
    };
    let circle: Vec<String> =
        (0..3).flat_map(|rank| [expected(rank, 1, "arrive"), expected(rank, 0, "send")]).collect();
    assert_eq!(*operations, circle);
    assert!(ring(&[false; 3]).is_err(), "all take in first");
    assert!(ring(&[true, true, false]).is_ok(), "one takes in first, then all go on");
}

#[test]
fn a_certificate_is_text_that_is_checked() {
    let certificate = check(&PAIR.map(String::from)).unwrap();
    let text = certificate.to_string();
    let head = "certificate @pair {
  whole 000000000000000000000000000000ab
  rank 0 posts 64 has dev0
  rank 1 posts 64 has dev1
  turns 0/0+2, 0/1+1, 1/1+2, 1/0+1, 0/1+1, 1/0+1
}
";
    assert!(text.starts_with(head), "{text}");
    assert_eq!(text, [head, PAIR[0], "\n", PAIR[1]].concat());
    assert_eq!(text.parse(), Ok(certificate));
    let cases = [
        ("posts 64 has dev0", "posts 63 has dev0", "line 3: the parts say `rank 0 posts 64 has dev0`"),
        ("posts 64 has dev1", "posts 64 has dev2", "line 4: the parts say `rank 1 posts 64 has dev1`"),
        ("whole 00000", "whole 10000", "line 2: the parts say `whole 000000000000000000000000000000ab`"),
        ("  rank 1 posts 64 has dev1\n", "", "line 5: 2 lines about the job; there must be 3"),
        (
            "0/0+2, 0/1+1",
            "0/0+1, 0/1+2",
            "turn 1 posts rank 0: operation 1 of lane 1 (send of y), which waits for rank 0: operation 0 of lane 1 (send of x): that is not complete then",
        ),
        ("1/1+2, 1/0+1", "1/0+1, 1/1+2", "which waits for rank 1: operation 0 of lane 1 (arrive of x)"),
        (", 1/0+1\n", "\n", "rank 1: operation 1 of lane 0 (work of d) is never posted"),
        (", 1/0+1\n", ", 1/0+2\n", "turn 5 posts 2 operations of lane 0 of rank 1, which has 1 left"),
        ("0/0+2", "2/0+2", "turn 0 posts 2 operations of lane 0 of rank 2, which has 0 left"),
        ("0/0+2", "0/0-2", "`0/0-2` is not a turn like 0/3+12"),
        ("run 64] 0+64", "run 60] 0+64", "not a sound certificate: message 0"),
        (" after 0/1\n}", "\n}", "line 15: not a sound program: "),
        ("certificate @pair", "certificate @paar", "must be the parts of `paar`"),
        ("program @pair {\n  part 1", "something {\n  part 1", "line 16: "),
    ];
    for (from, to, expected) in cases {
        let changed = text.replacen(from, to, 1);
        assert_ne!(changed, text, "{from} is in the text");
        let error = changed.parse::<Certificate>().expect_err("refused").to_string();
        assert!(error.contains(expected), "{from} to {to}: {error}");
    }
    for text in ["", "}", "certificate @x {\n}", head] {
        assert!(text.parse::<Certificate>().is_err(), "{text}");
    }
}

/// A line of a program without one of its waits.
fn without_wait(line: &str, wait: Wait) -> String {
    let Wait { lane, position } = wait;
    let (before, waits) = line.split_once(" after ").expect("the operation waits");
    let (waits, carried) = waits.split_once(" carried ").unwrap_or((waits, ""));
    let gone = format!("{lane}/{position}");
    let left: Vec<&str> = waits.split(", ").filter(|wait| *wait != gone).collect();
    let list =
        |word: &str, waits: &str| if waits.is_empty() { String::new() } else { format!(" {word} {waits}") };
    [before, &list("after", &left.join(", ")), &list("carried", carried)].concat()
}

/// Waits for and of messages are only where they are needed, so none can be dropped.
#[test]
fn no_wait_around_a_message_can_be_dropped() {
    let mut random = Random(9);
    let mut dropped = 0;
    for _ in 0..60 {
        let devices = 2 + random.below(3) as u32;
        let whole = random_whole(&mut random, devices, 30);
        let parts = whole.parts(&random_placement(&mut random, devices)).unwrap();
        for part in &parts {
            let is_message = |operation: &Operation| [SEND, ARRIVE].contains(&part.kernel(operation));
            let text = part.to_string();
            let lines: Vec<&str> = text.lines().collect();
            let runs = (0..lines.len()).filter(|&at| lines[at].starts_with("    run "));
            for (at, operation) in runs.zip(part.operations()) {
                for &wait in part.waits(operation) {
                    let other =
                        &part.operations_of(&part.lanes()[wait.lane as usize])[wait.position as usize];
                    if !is_message(operation) && !is_message(other) {
                        continue;
                    }
                    let (less, mut changed) = (without_wait(lines[at], wait), lines.clone());
                    changed[at] = &less;
                    let error =
                        changed.join("\n").parse::<Program>().expect_err("a wait is missing").to_string();
                    assert!(error.contains("nothing orders the two"), "{less}: {error}");
                    dropped += 1;
                }
            }
        }
    }
    assert!(dropped > 500, "{dropped} waits");
}
