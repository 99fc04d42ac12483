//! Building, checking, printing and fingerprinting programs.

#[path = "programs/host.rs"]
mod host;
#[path = "programs/lanes.rs"]
mod lanes;
#[path = "programs/races.rs"]
mod races;
#[path = "programs/runs.rs"]
mod runs;

use phalanx_ir::TensorType;
use phalanx_program::{
    Blocks, Builder, Draft, MAX_SLICES, Port, PortKind, PortTile, Program, ProgramError, Slice, feeds,
    fetches,
};

const NONE: Slice = Slice { lane: 0, offset: 0, bytes: 0 };

fn slice(offset: u64, bytes: u64) -> Slice {
    Slice { lane: 0, offset, bytes }
}

/// A tensor that is one tile.
fn whole(name: &str, kind: PortKind, ty: TensorType, slice: Slice) -> Port {
    let tile = PortTile { origin: vec![0; ty.shape.rank()], ty: ty.clone(), slice };
    Port { name: name.into(), kind, ty, tiles: vec![tile] }
}

fn port(name: &str, kind: PortKind, offset: u64) -> Port {
    whole(name, kind, TensorType::f32([4]), slice(offset, 16))
}

fn one_lane(name: &str, arena: u64) -> Builder {
    let mut builder = Builder::new(name);
    builder.lane(0, arena);
    builder
}

fn sample_ports() -> [Port; 4] {
    [
        port("x", PortKind::Input, 0),
        port("w", PortKind::Param, 64),
        port("m", PortKind::State, 128),
        port("y", PortKind::Output, 192),
    ]
}

/// Three kernels on four tensors, one used twice, with and without operands, parameters and working memory. The fetch is left
/// to `sound`, so that more can be added.
fn sample() -> Builder {
    let mut builder = one_lane("sample", 512);
    sample_ports().into_iter().for_each(|port| builder.port(port));
    feeds(&sample_ports(), 1)[0].iter().for_each(|feed| builder.operation(feed.draft()));
    builder.operation(Draft {
        kernel: "fill",
        label: "start",
        writes: &[slice(256, 16)],
        ..Draft::default()
    });
    builder.operation(Draft {
        kernel: "mul",
        label: "layer one",
        blocks: Blocks::new(2).expect("two blocks are some"),
        params: &[4, u64::MAX],
        reads: &[slice(0, 16), slice(64, 16)],
        writes: &[slice(192, 16)],
        ..Draft::default()
    });
    builder.operation(Draft {
        kernel: "fill",
        label: "layer one",
        params: &[7],
        writes: &[slice(128, 16)],
        scratch: slice(320, 100),
        ..Draft::default()
    });
    builder.operation(Draft {
        kernel: "move",
        label: "end",
        params: &[1, 2, 3],
        reads: &[slice(256, 16)],
        writes: &[slice(448, 8), slice(64, 16)],
        ..Draft::default()
    });
    builder
}

fn sound() -> Program {
    let mut builder = sample();
    fetches(&sample_ports(), 1)[0].iter().for_each(|fetch| builder.operation(fetch.draft()));
    builder.finish().expect("the sample is sound")
}

/// An operation without parameters and waits.
fn plain<'a>(reads: &'a [Slice], writes: &'a [Slice], scratch: Slice) -> Draft<'a> {
    Draft { kernel: "k", label: "l", reads, writes, scratch, ..Draft::default() }
}

#[test]
fn what_was_built_can_be_read() {
    let program = sound();
    assert_eq!((program.name(), program.arena()), ("sample", 512));
    assert_eq!(
        program.kernels(),
        ["feed", "fill", "mul", "move", "fetch"],
        "each once, in order of first use"
    );
    let [_, first, second, third, last, _] = program.operations() else { panic!("six operations") };
    assert_eq!((first.kernel, third.kernel), (1, 1), "one kernel, used twice");
    assert_eq!(program.label(second), "layer one");
    assert_eq!(program.label(third), "layer one");
    assert_eq!(program.params(second), [4, u64::MAX]);
    assert_eq!(program.slices(&second.reads), [slice(0, 16), slice(64, 16)]);
    assert_eq!(program.slices(&last.writes), [slice(448, 8), slice(64, 16)]);
    assert_eq!(third.scratch, slice(320, 100));
    assert!(program.params(first).is_empty() && program.slices(&first.reads).is_empty());
    assert_eq!(program.ports().len(), 4);
    assert_eq!(program.operations_of(&program.lanes()[0]).len(), 6);
}

#[test]
fn the_text_parses_to_the_same_program() {
    let program = sound();
    let text = program.to_string();
    assert_eq!(text.parse::<Program>().expect("a printed program parses"), program);
    assert_eq!(
        text,
        "program @sample {\n  input \"x\" f32[4]\n    tile f32[4] at [0] in 0/0\n  param \"w\" f32[4]\n    \
         tile f32[4] at [0] in 0/64\n  state \"m\" f32[4]\n    tile f32[4] at [0] in 0/128\n  \
         output \"y\" f32[4]\n    tile f32[4] at [0] in 0/192\n  lane dev0 arena 512\n    \
         run feed [0 at 0 = 0 at 0 run 16] -> 0+16 scratch 0+0 of \"arguments\"\n    \
         run fill [] -> 256+16 scratch 0+0 of \"start\"\n    \
         run mul on 2 [4, 18446744073709551615] 0+16, 64+16 -> 192+16 scratch 0+0 of \"layer one\"\n    \
         run fill [7] -> 128+16 scratch 320+100 of \"layer one\"\n    \
         run move [1, 2, 3] 256+16 -> 448+8, 64+16 scratch 0+0 of \"end\"\n    \
         run fetch [0 at 0 = 0 at 0 run 16] 192+16 -> scratch 0+0 of \"results\"\n}"
    );
    for empty in [Builder::new("empty"), one_lane("idle", 0)] {
        let empty = empty.finish().expect("nothing is sound");
        assert_eq!(empty.to_string().parse::<Program>().expect("an empty program parses"), empty);
    }
}

#[test]
fn an_operation_may_write_nothing() {
    let mut builder = one_lane("sink", 64);
    builder.operation(plain(&[slice(0, 16)], &[], NONE));
    let program = builder.finish().expect("a program may only look");
    assert_eq!(program.to_string().parse::<Program>().expect("its text parses"), program);
}

/// Every change of one word of the text changes the fingerprint.
#[test]
fn every_field_is_in_the_hash() {
    let program = sound();
    assert_eq!(program.hash(), sound().hash());
    let text = program.to_string();
    let changes = [
        ("@sample", "@other"),
        ("arena 512", "arena 576"),
        ("lane dev0", "lane dev1"),
        ("input \"x\"", "input \"z\""),
        ("param \"w\"", "state \"w\""),
        ("f32[4]\n    tile f32[4] at [0]", "i32[4]\n    tile i32[4] at [0]"),
        ("f32[4]\n    tile f32[4] at [0]", "f32[2, 2]\n    tile f32[2, 2] at [0, 0]"),
        ("at [0] in 0/128", "at [0] in 0/384"),
        ("run mul", "run div"),
        ("[4, 18446744073709551615]", "[4, 18446744073709551614]"),
        ("[4, 18446744073709551615]", "[4]"),
        ("0+16, 64+16 -> 192+16", "64+16, 0+16 -> 192+16"),
        ("0+16, 64+16 -> 192+16", "0+16, 64+12 -> 192+16"),
        ("0+16, 64+16 -> 192+16", "0+16 -> 64+16, 192+16"),
        ("320+100", "320+96"),
        ("320+100", "384+100"),
        ("of \"end\"", "of \"start\""),
    ];
    let mut hashes = vec![program.hash()];
    for (from, to) in changes {
        let changed = text.replacen(from, to, 1);
        assert_ne!(changed, text, "{from} is in the text");
        let changed: Program = changed.parse().unwrap_or_else(|error| panic!("{from} to {to}: {error}"));
        assert!(!hashes.contains(&changed.hash()), "{from} to {to}");
        hashes.push(changed.hash());
    }
    let mut swapped: Vec<_> = text.lines().collect();
    swapped.swap(11, 12);
    let swapped: Program = swapped.join("\n").parse().expect("another order parses");
    assert!(!hashes.contains(&swapped.hash()), "the order of operations counts");
}

fn errors(builder: Builder) -> Vec<ProgramError> {
    builder.finish().expect_err("the program is not sound")
}

#[test]
fn slices_are_aligned_and_inside_the_arena() {
    let wrong =
        [slice(8, 16), slice(512, 16), slice(448, 65), slice(u64::MAX - 63, 128), slice(64, u64::MAX)];
    for wrong in wrong {
        for place in 0..3 {
            let mut builder = sample();
            let good = slice(384, 16);
            let (read, write, scratch) = match place {
                0 => (wrong, good, NONE),
                1 => (good, wrong, NONE),
                _ => (NONE, good, wrong),
            };
            builder.operation(plain(&[read], &[write], scratch));
            let Slice { lane, offset, bytes } = wrong;
            let what = "operation 5 (k of l)".to_string();
            let expected = ProgramError::Slice { what, lane, offset, bytes, arena: 512 };
            assert!(errors(builder).contains(&expected), "{wrong:?} as operand {place}");
        }
        let mut builder = sample();
        builder.port(whole("odd", PortKind::Output, TensorType::f32([4]), wrong));
        let found = errors(builder);
        assert!(matches!(&found[0], ProgramError::Slice { what, .. } if what == "port `odd`"), "{found:?}");
    }
}

#[test]
fn a_written_slice_overlaps_nothing() {
    let (a, b, c) = (slice(0, 100), slice(64, 64), slice(192, 64));
    let clashes: [(&[Slice], &[Slice], Slice); 6] = [
        (&[a], &[b], NONE),
        (&[b], &[a], NONE),
        (&[a], &[a], NONE),
        (&[], &[a, b], NONE),
        (&[a], &[c], b),
        (&[], &[a], b),
    ];
    for (reads, writes, scratch) in clashes {
        let mut builder = one_lane("clash", 256);
        builder.operation(plain(reads, writes, scratch));
        assert_eq!(errors(builder), [ProgramError::Overlap { what: "operation 0 (k of l)".into() }]);
    }
    let mut builder = one_lane("fine", 256);
    builder.operation(plain(&[a, b, a], &[c], slice(128, 64)));
    builder.finish().expect("reads may overlap each other, and neighbours are apart");
}

#[test]
fn an_operation_has_a_limited_number_of_operands() {
    let slices: Vec<_> = (0..=MAX_SLICES as u64).map(|i| slice(64 * i, 4)).collect();
    let most = &slices[..MAX_SLICES];
    for (operands, sound) in
        [([most, &[][..]], true), ([&[][..], most], true), ([&slices, &[]], false), ([&[], &slices], false)]
    {
        let mut builder = one_lane("many", 4096);
        builder.operation(plain(operands[0], operands[1], NONE));
        let expected = ProgramError::TooMany { what: "operation 0 (k of l)".into(), found: MAX_SLICES + 1 };
        assert_eq!(builder.finish().err(), (!sound).then_some(vec![expected]));
        let mut builder = one_lane("many", 4096);
        builder
            .operation(Draft { kernel: phalanx_program::RECEIVE, ..plain(operands[0], operands[1], NONE) });
        builder.finish().expect("a movement has any number");
    }
}

#[test]
fn ports_have_their_own_name_and_the_bytes_of_their_type() {
    let mut builder = sample();
    builder.port(port("x", PortKind::Output, 384));
    assert_eq!(errors(builder), [ProgramError::Port { name: "x".into() }]);
    let mut builder = sample();
    builder.port(whole("short", PortKind::Input, TensorType::f32([4]), slice(384, 12)));
    let found = errors(builder);
    assert_eq!(found, [ProgramError::Port { name: "short".into() }]);
    let mut builder = sample();
    builder.port(whole("deep", PortKind::Input, TensorType::f32([1; 7]), slice(384, 4)));
    assert_eq!(errors(builder), [ProgramError::Port { name: "deep".into() }]);
    assert_eq!(
        found[0].to_string(),
        "port `short` is named twice, has more than 6 dimensions or not the bytes of its type"
    );
}

#[test]
fn all_errors_are_reported() {
    let mut builder = sample();
    builder.port(port("x", PortKind::Output, 384));
    builder.operation(plain(&[slice(8, 8)], &[slice(1024, 8)], NONE));
    assert_eq!(errors(builder).len(), 3);
}

#[test]
fn unsound_and_malformed_texts_are_refused() {
    let text = sound().to_string();
    let changes = [
        ("arena 512", "arena 128", "not a sound program"),
        ("arena 512", "arena", "expected"),
        ("lane dev0", "lane zero", "not a device"),
        ("input \"x\"", "inlet \"x\"", "none of run"),
        ("  input \"x\" f32[4]\n", "", "under its tensor"),
        ("  lane dev0 arena 512\n", "", "under its lane"),
        ("in 0/64", "in 64", "not a place"),
        ("256+16", "256", "not a slice"),
        ("of \"end\"", "of \"end\" x", "left over"),
        ("of \"end\"", "of \"end\" after 1", "not a wait"),
        ("of \"end\"", "of \"end\" carried 1", "not a wait"),
        ("of \"end\"", "of \"end\" carried 0/0", "its own lane"),
        ("[7]", "[seven]", "`seven` is not a parameter"),
        ("mul on 2", "mul on 0", "1 to 65536 blocks, not on 0"),
        ("mul on 2", "mul on 65537", "1 to 65536 blocks, not on 65537"),
        ("program", "schedule", "program"),
    ];
    for (from, to, message) in changes {
        let error = text.replacen(from, to, 1).parse::<Program>().expect_err("the text is wrong");
        assert!(error.to_string().contains(message), "{from} to {to}: {error}");
    }
    assert!("".parse::<Program>().is_err());
}
