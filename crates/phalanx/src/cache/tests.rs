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
    let program = path.join("train.program");
    let text = fs::read_to_string(&program).unwrap();

    // Only what is read gives another program.
    let other = compile(&model, &settings.clone().cores(1).runs(None)).unwrap().relabelled(|n| n.to_string());
    write(&path, &Artifact::of_program(&model, &other, &settings)).unwrap();
    assert_eq!(cache.compile(&model, &settings).unwrap(), other);

    let changed = text.replacen("run ", "run  ", 1);
    let unsound = text.replacen("arena ", "arena 9", 1);
    for damaged in [&text[..text.len() / 2], "", "x", &changed, &unsound] {
        fs::write(&program, damaged).unwrap();
        assert_eq!(cache.compile(&model, &settings).unwrap(), compiled);
        assert_eq!(fs::read_to_string(&program).unwrap(), text, "it is whole again");
    }
    let unlike = settings.clone().seed(7);
    write(&path, &Artifact::of_program(&model, &other, &unlike)).unwrap();
    assert_eq!(cache.compile(&model, &settings).unwrap(), compiled, "it is of other settings");
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
fn the_programs_that_were_not_used_for_longest_are_removed() {
    let scratch = Scratch::new("old");
    fs::create_dir_all(&scratch.0).unwrap();
    let dir = |number: usize| scratch.0.join(format!("{number}.{EXTENSION}"));
    for number in 0..MOST_PROGRAMS + 3 {
        let used = SystemTime::UNIX_EPOCH + Duration::from_secs(1000 - number as u64);
        fs::create_dir(dir(number)).unwrap();
        fs::write(dir(number).join("file"), [0; 100]).unwrap();
        File::open(dir(number)).unwrap().set_modified(used).unwrap();
    }
    fs::write(scratch.0.join("other"), "").unwrap();
    fs::write(scratch.0.join(format!("0.{FORMER_EXTENSION}")), "of an earlier version").unwrap();
    let left = || (0..MOST_PROGRAMS + 3).filter(|&number| dir(number).exists()).collect::<Vec<_>>();
    remove_old(&scratch.0, MOST_BYTES).unwrap();
    assert_eq!(left(), (0..MOST_PROGRAMS).collect::<Vec<_>>());
    remove_old(&scratch.0, 1050).unwrap();
    assert_eq!(left(), (0..10).collect::<Vec<_>>());
    remove_old(&scratch.0, 1).unwrap();
    assert_eq!(left(), [0], "what was written last stays");
    assert!(scratch.0.join("other").exists());
    assert!(!scratch.0.join(format!("0.{FORMER_EXTENSION}")).exists());
}
