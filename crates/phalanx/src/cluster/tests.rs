use std::path::Path;

use super::*;
use crate::{Goal, Optimizer, Settings};

const TWO_NODES: &str = "\
devices = 4
[[level]]
size = 2
latency = '1us'
bandwidth = '8GB'
uplink = '1GB'
per_message = '500ns'
[[level]]
latency = '9us'
bandwidth = '1GB'
[device]
memory = '2GiB'
cores = 3
[[device.group]]
from = 2
to = 3
speed = 0.5
memory = '1GiB'
";

#[test]
fn a_file_says_how_devices_are_connected_and_what_they_can_do() {
    let cluster = Cluster::parse(TWO_NODES).unwrap();
    assert_eq!((cluster.devices, cluster.memory, cluster.cores), (4, Some(1 << 30), Some(3)));
    assert_eq!(cluster.speeds, [1.0, 1.0, 0.5, 0.5]);
    let drawn = "1 x 4 devices: 9us,8Gbit\n  2 x 2 devices: 1us,64Gbit, uplink 8Gbit, 500ns a message\n";
    assert_eq!(cluster.draw(), drawn);
    assert_eq!(cluster.topology.link(1, 2), "9us,1GB".parse().unwrap());
}

#[test]
fn what_is_wrong_with_a_file_is_told() {
    let level = "[[level]]\nlatency = '1us'\nbandwidth = '1GB'\n";
    for (text, problem) in [
        ("devices = 0".to_string(), "`devices` is 0; it must be from 1 to 131072"),
        ("devices = 2".to_string(), "a cluster needs at least one level"),
        (format!("devices = 2\nnodes = 3\n{level}"), "unknown field `nodes`"),
        (
            format!("devices = 2\n{level}{level}"),
            "`level.size` is missing; a level inside another one needs it",
        ),
        (format!("devices = 2\n{level}uplink = '1GB'"), "level 0 is the outermost one and holds all devices"),
        (
            "devices = 2\n[[level]]\nlatency = '1'\nbandwidth = '1GB'".to_string(),
            "level 0: `1,1GB` is not a link",
        ),
        (
            format!("devices = 2\n{level}[device]\nmemory = 'much'"),
            "`device.memory` is much; it must be a size",
        ),
        (
            format!("devices = 2\n{level}[device]\nspeed = 0.0"),
            "`device.speed` is 0; it must be from 0.001 to 1000",
        ),
        (
            format!("devices = 2\n{level}[[device.group]]\nfrom = 1\nto = 2"),
            "`device.group` is from 1 to 2; groups name devices from 0 to 1",
        ),
        (
            format!("devices = 2\n{level}[[device.group]]\nfrom = 1\nto = 0"),
            "`device.group` is from 1 to 0; groups name devices from 0 to 1",
        ),
    ] {
        let error = Cluster::parse(&text).unwrap_err().to_string();
        assert!(error.contains(problem), "{text}\n{error}");
    }
}

#[test]
fn the_models_of_real_clusters_can_be_read() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clusters");
    let mut names: Vec<String> = std::fs::read_dir(&dir)
        .unwrap()
        .map(|file| Cluster::read(&file.unwrap().path()).unwrap().name)
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["cpu512", "gcp-a100-40", "mixed", "selene", "teton"]);
}

#[test]
fn a_slower_device_takes_longer_in_predictions() {
    let model = phalanx_testkit::zoo::gpt2(8, phalanx_testkit::zoo::GPT2);
    let choice = crate::PlanChoice::default().plan(Some("dp".into())).devices(Some(2));
    let settings = Settings::new(Goal::Train(Optimizer::adamw(0.1))).plan(choice.resolve(&model).unwrap());
    let tasks = crate::pipeline::lay_out(&model, &settings, |_, _| ()).unwrap().tasks;
    let even = settings.costs(&tasks).tasks;
    let uneven = settings.clone().speeds(vec![1.0, 0.5]).costs(&tasks).tasks;
    for (id, task) in tasks.tasks.iter() {
        let times = if phalanx_ir::Id::index(task.device) == 1 { 2 } else { 1 };
        assert_eq!(uneven[id], times * even[id]);
    }
}
