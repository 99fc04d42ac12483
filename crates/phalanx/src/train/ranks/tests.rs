use std::thread;

use phalanx_models::ModelConfig;
use phalanx_net::local::Local;
use phalanx_program::Placement;

use super::*;
use crate::ProgramCache;
use crate::job::Connection;

#[test]
fn ranks_need_not_agree_on_what_rank_0_decides_or_each_has_for_itself() {
    let one = TrainConfig::default();
    let own = TrainConfig {
        plan: Some("dp2".into()),
        costs: Some("costs.json".into()),
        seed: u64::MAX,
        save: Some("out".into()),
        save_dtype: crate::hf::SaveDtype::Bf16,
        lora_save: crate::train::LoraSave::Separate,
        data_cache: Some("cache".into()),
        log_dir: Some("log".into()),
        log_every: Some(2),
        overwrite: true,
        no_cache: true,
        cores: 3,
        cores_per_device: 2,
        ..one.clone()
    };
    assert_eq!(one.rank_options().unwrap().shared, own.rank_options().unwrap().shared);
    let shared = TrainConfig { lr: 0.5, ..one }.rank_options().unwrap().shared;
    assert_eq!((&shared["lr"], &shared["layers"]), (&0.5.into(), &serde_json::Value::Null));
    assert_eq!(shared["precision"], "f32", "all ranks must have the same");
    assert_eq!(shared.len(), OPTIONS.len() - 14);
}

/// Rank 1 has neither the plan of rank 0 nor its seed, and gets the same settings and program.
#[test]
fn ranks_of_a_job_compile_one_program() {
    let model = ModelConfig::preset("gpt2", "nano").unwrap().with_vocab(256).with_context(8);
    let graph = model.training_graph(4, 8).unwrap();
    let rank = |local: Local| {
        let config = match local.rank() {
            0 => TrainConfig { plan: Some("dp2".into()), seed: 5, ..TrainConfig::default() },
            _ => TrainConfig { plan: Some("no/such/file.toml".into()), ..TrainConfig::default() },
        };
        let connection = Connection::new(Arc::new(local), Duration::from_secs(60), Arc::new(|_| ()));
        let job = Job::start(&connection, config.rank_options().unwrap()).unwrap();
        let (settings, topology) = config.settings_in_job(&job, &graph, &mut |_, _, _| ()).unwrap();
        let (program, certificate) = job.program(&graph, &settings, &ProgramCache::none()).unwrap();
        assert_eq!(certificate.is_some(), job.network.rank() == 0);
        assert_eq!(
            program,
            crate::pipeline::compile(&graph, &settings).unwrap(),
            "what it would compile itself"
        );
        (settings, topology.placement)
    };
    let results: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = Local::job(2).into_iter().map(|local| scope.spawn(|| rank(local))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(results[0], results[1]);
    let (settings, placement) = &results[0];
    assert_eq!((settings.seed, settings.plan.mesh.devices()), (5, 2));
    assert_eq!(placement, &Placement { ranks: 2, of_device: vec![0, 1] });
}
