use phalanx_link::Topology;

use super::*;

const ONCE: SimRuns = SimRuns { count: 1, depth: 1 };

fn at(lane: u32, position: u32) -> StepAt {
    StepAt { lane, position }
}

fn work(cost: u64, waits: &[StepAt]) -> SimStep {
    SimStep { cost, waits: waits.to_vec(), ..SimStep::default() }
}

fn ends(run: &SimRun) -> Vec<Vec<u64>> {
    run.iter().map(|lane| lane.iter().map(|span| span.end).collect()).collect()
}

#[test]
fn lanes_run_in_order_and_wait_for_each_other() {
    let lines = [
        SimLane { device: 0, steps: vec![work(5, &[]), work(7, &[at(1, 0)])] },
        SimLane { device: 1, steps: vec![work(9, &[at(0, 0)]), work(1, &[])] },
    ];
    assert_eq!(ends(&simulate(&lines, None, ONCE)[0]), [vec![5, 21], vec![14, 15]]);
}

#[test]
fn transfers_take_a_link_and_a_lane_beside_goes_on() {
    // 1 byte a nanosecond, 100 ns latency.
    let topology: Topology = "100ns,1GB".parse().unwrap();
    let link = Some(&topology);
    let receive = SimStep { cost: 3, parts: vec![Part::new(1, 50)], ..SimStep::default() };
    let inline = [
        SimLane { device: 0, steps: vec![receive.clone(), work(60, &[])] },
        SimLane { device: 1, steps: vec![] },
    ];
    assert_eq!(ends(&simulate(&inline, link, ONCE)[0])[0], [153, 213]);
    let beside = [
        SimLane { device: 0, steps: vec![work(60, &[])] },
        SimLane { device: 0, steps: vec![receive] },
        SimLane { device: 1, steps: vec![] },
    ];
    let run = &simulate(&beside, link, ONCE)[0];
    assert_eq!(ends(run)[..2], [vec![60], vec![153]]);
    assert_eq!(run[1][0], SimSpan { start: 0, arrival: 150, end: 153 });
    assert_eq!(
        ends(&simulate(&beside, None, ONCE)[0])[..2],
        [vec![60], vec![3]],
        "shared memory takes no time"
    );
}

#[test]
fn runs_overlap_as_far_as_carried_waits_and_depth_allow() {
    // A pipeline of two lanes: the second run of lane 0 starts while lane 1 works on the first.
    let mut lines = [
        SimLane { device: 0, steps: vec![work(10, &[])] },
        SimLane { device: 1, steps: vec![work(10, &[at(0, 0)])] },
    ];
    let finish = |lines: &[SimLane], depth| -> Vec<u64> {
        simulate(lines, None, SimRuns { count: 3, depth }).iter().map(|run| run[1][0].end).collect()
    };
    assert_eq!(finish(&lines, 2), [20, 30, 40]);
    assert_eq!(finish(&lines, 1), [20, 40, 60], "one at a time");
    lines[0].steps[0].carried = vec![at(1, 0)];
    assert_eq!(finish(&lines, 2), [20, 40, 60], "the next run waits for the last step");
}
