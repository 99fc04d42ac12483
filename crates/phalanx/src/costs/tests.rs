//! Tests of tables: agreement, files, and what signatures leave out.

use std::path::{Path, PathBuf};

use super::*;

fn machine(cpu: &str) -> Machine {
    Machine { cpu: cpu.into(), isa: "portable".into(), version: "1".into() }
}

fn signature(kernel: &str, size: u64) -> Signature {
    Signature { kernel: kernel.into(), words: vec![size], reads: vec![size, 4], writes: vec![], cores: 2 }
}

fn cost_table(cpu: &str, entries: &[(&str, u64, u64)]) -> CostTable {
    let mut cost_table = CostTable::new(machine(cpu));
    entries.iter().for_each(|&(kernel, size, ns)| cost_table.set(signature(kernel, size), ns));
    cost_table
}

fn times(cost_table: &CostTable) -> Vec<(&str, u64)> {
    cost_table.entries().map(|(signature, ns)| (signature.kernel.as_str(), ns)).collect()
}

/// A file in a directory of its own, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(test: &str) -> Scratch {
        let dir = std::env::temp_dir().join(format!("phalanx-costs-{test}-{}", std::process::id()));
        Scratch(dir.join("below").join("cost_table.json"))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        _ = self.0.parent().and_then(Path::parent).map(std::fs::remove_dir_all);
    }
}

#[test]
fn the_median_is_the_lower_middle_of_those_present_in_any_order() {
    let tables = [
        cost_table("b", &[("adamw", 8, 30), ("matmul", 8, 100)]),
        cost_table("a", &[("adamw", 8, 10), ("fill", 8, 7)]),
        cost_table("b", &[("adamw", 8, 20), ("matmul", 8, 90)]),
    ];
    let expected = [("adamw", 20), ("fill", 7), ("matmul", 90)];
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let agreed = CostTable::median(&order.map(|at| tables[at].clone()));
        assert_eq!(times(&agreed), expected, "{order:?}");
        assert_eq!(agreed.machine(), &machine("a + b"));
    }
    assert_eq!(
        times(&CostTable::median(&tables[..1])),
        times(&tables[0]),
        "one cost table agrees with itself"
    );
    assert_eq!(CostTable::median(&[]).entries().len(), 0);
}

#[test]
fn the_text_of_a_book_is_sorted_and_reads_back() {
    let one = cost_table("a \"quoted\" \\ cpu", &[("sgd", 9, 3), ("sgd", 10, u64::MAX), ("add", 1, 0)]);
    let text = one.to_text();
    let parsed = CostTable::parse(&text, Path::new("x")).expect("what is written can be read");
    assert_eq!((&parsed.machine, &parsed.entries), (&one.machine, &one.entries));
    let mut other = cost_table("a \"quoted\" \\ cpu", &[("add", 1, 0), ("sgd", 10, u64::MAX), ("sgd", 9, 3)]);
    assert_eq!(other.to_text(), text, "the order of measuring plays no part");
    other.set(signature("sgd", 9), 4);
    assert_eq!(text.lines().zip(other.to_text().lines()).filter(|(a, b)| a != b).count(), 1);
    let empty = CostTable::new(machine("a"));
    assert_eq!(
        CostTable::parse(&empty.to_text(), Path::new("x")).expect("an empty cost table reads back"),
        empty
    );
}

#[test]
fn malformed_files_are_refused_with_the_place_and_the_remedy() {
    let good = cost_table("a", &[("sgd", 9, 3), ("sgd", 10, 4)]).to_text();
    let line = good.lines().nth(7).expect("the second entry");
    for (text, parts) in [
        (String::new(), &["cost_table.json", "line 1", "delete"][..]),
        (good.replace("\"ns\": 4", "\"ns\": 4.5"), &["cost_table.json", "4.5", "line 8"]),
        (good.replace("\"ns\": 4", "\"ns\": -4"), &["cost_table.json", "-4", "line 8"]),
        (good.replace("\"ns\": 4", "\"time\": 4"), &["cost_table.json", "`time`", "line 8"]),
        (good.replace("\"cpu\"", "\"gpu\""), &["cost_table.json", "`gpu`", "line 3"]),
        (good.replace(", \"cores\": 2, \"ns\": 4", ", \"ns\": 4"), &["cost_table.json", "`cores`", "line 8"]),
        (good.replace("\"format\": 1", "\"format\": 2"), &["cost_table.json", "2", "1", "delete"]),
        (
            good.replace("\"cores\": 2, \"ns\": 4", "\"cores\": 0, \"ns\": 4"),
            &["entry 2", "`sgd`", "0 cores"],
        ),
        (good.replace(line, &line.replace("10", "9")), &["entry 2", "`sgd`", "4 ns", "3 ns", "keep one"]),
    ] {
        let error = CostTable::parse(&text, Path::new("dir/cost_table.json")).expect_err(&text).to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{parts:?} in: {error}");
    }
}

#[test]
fn processes_that_share_a_file_add_to_it_and_agree() {
    let file = Scratch::new("share");
    let [mut first, mut second] =
        [(); 2].map(|()| CostTable::load(&file.0).expect("a missing file is an empty cost table"));
    assert_eq!(first.machine(), &Machine::this());
    first.set(signature("fill", 1), 10);
    first.set(signature("sgd", 1), 11);
    second.set(signature("sgd", 1), 99);
    second.set(signature("adamw", 1), 12);
    first.save().expect("the directory is made");
    second.save().expect("the file is there");
    let expected = [("adamw", 12), ("fill", 10), ("sgd", 11)];
    assert_eq!(times(&second), expected, "what stood in the file stays");
    let read = CostTable::read(&file.0).expect("the file is a cost table");
    assert_eq!(times(&read), expected);
    let siblings = std::fs::read_dir(file.0.parent().expect("a directory")).expect("readable").count();
    assert_eq!(siblings, 1, "no other file remains");
}

#[test]
fn many_savers_lose_nothing() {
    let file = Scratch::new("many");
    std::thread::scope(|scope| {
        for number in 0..8 {
            let path = &file.0;
            scope.spawn(move || {
                let mut cost_table = CostTable::load(path).expect("no file, or a cost table");
                for round in 0..4 {
                    cost_table.set(signature("fill", 10 * number + round), number);
                    cost_table.save().expect("the file can be written");
                }
            });
        }
    });
    assert_eq!(CostTable::read(&file.0).expect("the file is a cost table").entries().len(), 32);
}

#[test]
fn a_book_of_another_machine_is_read_but_not_added_to() {
    let file = Scratch::new("other");
    cost_table("elsewhere", &[("fill", 1, 10)]).write(&file.0).expect("the file can be written");
    let mut read = CostTable::load(&file.0).expect("the file is a cost table");
    read.save().expect("nothing is to be added");
    let mut mine = CostTable { path: Some(file.0.clone()), ..CostTable::new(Machine::this()) };
    mine.set(signature("fill", 2), 20);
    let error = mine.save().expect_err("the times would be mixed").to_string();
    assert!(error.contains("elsewhere") && error.contains(&Machine::this().cpu), "{error}");
    assert_ne!(machine("a").file_name(), machine("b").file_name());
}

#[test]
fn files_that_cannot_be_read_or_written_are_named() {
    let file = Scratch::new("denied");
    let error = CostTable::read(&file.0).expect_err("there is no file").to_string();
    assert!(error.contains("cost_table.json"), "{error}");
    cost_table("a", &[]).write(&file.0).expect("the directory is made");
    let below = file.0.join("cost_table.json");
    let error = cost_table("a", &[]).write(&below).expect_err("a file is no directory").to_string();
    assert!(error.contains(&below.display().to_string()) && error.contains("choose another"), "{error}");
}

#[test]
fn sizes_for_people_are_those_of_products() {
    let of = |kernel: &str, words: &[u64]| Signature { words: words.to_vec(), ..signature(kernel, 60) };
    assert_eq!(of("matmul", &[3, 5, 7, 8]).sizes().as_deref(), Some("3 of 5 x 7 x 8"));
    assert_eq!(of("matmul", &[1, 5, 7, 8]).sizes().as_deref(), Some("5 x 7 x 8"));
    assert_eq!(of("matmul", &[3]).sizes(), None, "a file may say anything");
    assert_eq!(of("fill", &[3, 5, 7, 8]).sizes(), None);
}

#[test]
fn the_link_follows_the_entries_of_the_file() {
    let mut cost_table = CostTable::new(machine("a"));
    assert!(cost_table.link().time(1 << 20) > cost_table.link().time(0), "estimated");
    for (bytes, ns) in [(100, 50), (1100, 250), (2100, 1250)] {
        let (reads, writes) = (vec![bytes], vec![bytes]);
        cost_table.set(Signature { kernel: "link".into(), words: vec![], reads, writes, cores: 1 }, ns);
    }
    let (reads, writes) = (vec![7], vec![2100]);
    cost_table.set(Signature { kernel: "link".into(), words: vec![], reads, writes, cores: 2 }, 5000);
    let link = cost_table.link();
    let found = [0, 100, 600, 1100, 1600, 2100, 3100].map(|bytes| link.time(bytes));
    assert_eq!(found, [50, 50, 150, 250, 750, 1250, 2250]);
}
