use std::collections::BTreeSet;
use std::time::Duration;

use phalanx_ir::Precision;
use phalanx_lower::Goal;

use super::*;
use crate::pipeline::Overlap;
use crate::{Optimizer, PlanChoice, models::ModelConfig};

/// A directory of its own, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(test: &str) -> Scratch {
        Scratch(env::temp_dir().join(format!("phalanx-cache-{test}-{}", std::process::id())))
    }

    fn cache(&self) -> ProgramCache {
        ProgramCache::at(self.0.join("programs"))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

fn example() -> (Graph, Settings) {
    let model = ModelConfig::preset("gpt2", "nano").unwrap().with_vocab(32).with_context(8);
    let graph = model.training_graph(4, 8).unwrap();
    let plan = PlanChoice::default().plan(Some("dp".into())).devices(Some(2)).resolve(&graph).unwrap();
    let settings = Settings::new(Goal::Train(Optimizer::adamw(0.1))).plan(plan).cores(1);
    let link = "100us,1Gbit".parse().unwrap();
    (graph, settings.topology(Some(link)).runs(Some(1)))
}

#[test]
fn a_program_is_compiled_once_and_a_damaged_file_is_replaced() {
    let (scratch, (model, settings)) = (Scratch::new("once"), example());
    let (cache, compiled) = (scratch.cache(), compile(&model, &settings).unwrap());
    let path = cache.path(&model, &settings).unwrap();
    assert_eq!(cache.compile(&model, &settings).unwrap(), compiled);
    let text = fs::read_to_string(&path).unwrap();

    // Only a file that is read gives another program.
    let other: Program =
        "program @p {\n  lane dev0 arena 64\n    run noop [1] -> 0+64 scratch 0+0 of \"t\"\n}"
            .parse()
            .unwrap();
    write(&path, &other).unwrap();
    assert_eq!(cache.compile(&model, &settings).unwrap(), other);

    let body = other.to_string().replacen("arena 64", "arena 32", 1);
    let unsound = format!("{FORMAT} {:032x}\n{body}", xxh3_128(body.as_bytes()));
    let changed = text.replacen("run ", "run  ", 1);
    let other_version = text.replacen("program-1", "program-0", 1);
    for damaged in [&text[..text.len() / 2], "", "x", &changed, &other_version, &unsound] {
        fs::write(&path, damaged).unwrap();
        assert_eq!(cache.compile(&model, &settings).unwrap(), compiled);
        assert_eq!(fs::read_to_string(&path).unwrap(), text, "it is whole again");
    }
}

#[test]
fn what_cannot_be_kept_is_compiled() {
    let (scratch, (model, settings)) = (Scratch::new("file"), example());
    let compiled = compile(&model, &settings).unwrap();
    fs::create_dir_all(&scratch.0).unwrap();
    fs::write(scratch.0.join("programs"), "a file where the directory should be").unwrap();
    for cache in [scratch.cache(), ProgramCache::none()] {
        assert_eq!(cache.compile(&model, &settings).unwrap(), compiled);
    }
    let quick = Settings { overlap: Overlap::Off, topology: None, ..settings };
    assert_eq!(scratch.cache().path(&model, &quick), None, "a program that takes no search has no file");
}

#[test]
fn the_name_depends_on_what_the_program_does() {
    let (model, settings) = example();
    let cache = ProgramCache::at("programs");
    let name = |model: &Graph, settings: Settings| cache.path(model, &settings).unwrap();
    let first = name(&model, settings.clone());
    assert_eq!(first, name(&model, settings.clone()));
    let pinned = Settings { pin: Pin::Off, check: Check::Kernels, ..settings.clone() };
    assert_eq!(first, name(&model, pinned), "neither pins nor checks are part of it");
    let longer = ModelConfig::preset("gpt2", "nano").unwrap().with_vocab(33).with_context(8);
    let others = [
        name(&longer.training_graph(4, 8).unwrap(), settings.clone()),
        name(&model, settings.clone().seed(1)),
        name(&model, settings.clone().precision(Precision::Bf16)),
        name(&model, settings.clone().precision(Precision::Bf16Pair)),
        name(&model, settings.clone().runs(None)),
        name(&model, settings.clone().topology("1ms,1Gbit".parse().ok())),
        name(&model, settings.memory(Some(1 << 30))),
    ];
    assert!(!others.contains(&first), "{others:?}");
}

#[test]
fn times_of_this_model_count_and_those_of_others_do_not() {
    use crate::costs::{CostTable, Machine, Signature};
    let (model, settings) = example();
    let cache = ProgramCache::at("programs");
    let name = |table: &CostTable| {
        let settings = Settings { cost_table: Some(std::sync::Arc::new(table.clone())), ..settings.clone() };
        cache.path(&model, &settings).unwrap()
    };
    let mut table = CostTable::new(Machine::this());
    let before = name(&table);
    let strange =
        Signature { kernel: "strange".into(), words: vec![], reads: vec![], writes: vec![], cores: 1 };
    table.set(strange, 7);
    assert_eq!(name(&table), before);
    let tasks = lower_plainly(&model, &settings).unwrap();
    table.measure(&tasks, 1, &mut |_, _, _| ()).unwrap();
    assert_ne!(name(&table), before);
}

#[test]
fn products_of_each_precision_are_measured_apart() {
    use crate::costs::Signature;
    let (model, settings) = example();
    let products = |precision| {
        let tasks = lower_plainly(&model, &settings.clone().precision(precision)).unwrap();
        let signatures = tasks.tasks.ids().filter_map(|task| Signature::of(&tasks, task, 1));
        signatures.filter(Signature::is_product).collect::<BTreeSet<_>>()
    };
    let [single, tiles, pairs] = [Precision::F32, Precision::Bf16, Precision::Bf16Pair].map(products);
    let matmul = |signature: &&Signature| signature.kernel == "matmul";
    assert_eq!(single.iter().filter(matmul).count(), tiles.iter().filter(matmul).count());
    assert_eq!(single.intersection(&tiles).filter(matmul).count(), 0);
    assert_eq!(tiles.intersection(&pairs).filter(matmul).count(), 0);
}

#[test]
fn the_files_that_were_not_used_for_longest_are_removed() {
    let scratch = Scratch::new("old");
    fs::create_dir_all(&scratch.0).unwrap();
    let file = |number: usize| scratch.0.join(format!("{number}.{EXTENSION}"));
    for number in 0..MOST_FILES + 3 {
        let used = SystemTime::UNIX_EPOCH + Duration::from_secs(1000 - number as u64);
        File::create(file(number)).unwrap().set_modified(used).unwrap();
    }
    fs::write(scratch.0.join("other"), "").unwrap();
    remove_old(&scratch.0).unwrap();
    let left: Vec<usize> = (0..MOST_FILES + 3).filter(|&number| file(number).exists()).collect();
    assert_eq!(left, (0..MOST_FILES).collect::<Vec<_>>());
    assert!(scratch.0.join("other").exists());
}
