//! Training on several processes beside PyTorch's, in alternating rounds so that a noisy machine hits all alike.

use std::process::Command;

use crate::bench::{median, number, option, phalanx, python, rate};
use crate::cargo;

/// The model of the peers' defaults.
const MODEL: [&str; 8] = ["--layers", "6", "--heads", "6", "--width", "384", "--context", "256"];

/// Sequences of each rank, however many there are.
const BATCH: usize = 8;

/// Steps whose times do not count, and all steps.
const WARMUP: usize = 3;
const STEPS: &str = "13";

/// A way to train on several processes, and the others that can.
struct Contest {
    plan: &'static str,
    peer: &'static str,
}

const CONTESTS: [Contest; 2] =
    [Contest { plan: "dp", peer: "torch_ddp" }, Contest { plan: "fsdp", peer: "torch_fsdp" }];

/// What one system did.
struct System {
    name: String,
    /// Tokens a second, of each round.
    rates: Vec<f64>,
}

/// Two ranks of a core each beside one rank and beside PyTorch: with whole copies of the model, then with shares of it.
pub fn ranks(args: &[&str]) -> Result<(), String> {
    let rounds = option(args, "--rounds")?.unwrap_or("3");
    let rounds = rounds.parse().ok().filter(|&rounds: &usize| rounds > 0);
    let rounds = rounds.ok_or("--rounds takes a number from 1")?;
    let mode = option(args, "--mode")?.unwrap_or("best");
    cargo(&["build", "--release", "--quiet", "--package", "phalanx-cli"])?;
    for contest in &CONTESTS {
        let systems = contest.run(rounds, mode)?;
        match args.contains(&"--json") {
            true => println!("{}", json(contest.plan, &systems)),
            false => print!("{}", table(contest.plan, &systems)),
        }
    }
    Ok(())
}

impl Contest {
    /// Ours with two ranks comes first.
    fn run(&self, rounds: usize, mode: &str) -> Result<Vec<System>, String> {
        let names = ["phalanx 2x1", "phalanx 1x1", self.peer];
        let mut systems = names.map(|name| System { name: name.into(), rates: Vec::new() });
        for _ in 0..rounds {
            let rates = [
                rate_of_steps(&mut train(self.plan, 2))?,
                rate_of_steps(&mut train(self.plan, 1))?,
                rate(python(&format!("{}.py", self.peer), "1", mode).args([
                    "--processes",
                    "2",
                    "--batch-per-process",
                    &BATCH.to_string(),
                ]))?,
            ];
            systems.iter_mut().zip(rates).for_each(|(system, rate)| system.rates.push(rate));
        }
        Ok(systems.into())
    }
}

/// As many ranks as devices, each of one core.
fn train(plan: &str, ranks: usize) -> Command {
    let (batch, ranks) = ((ranks * BATCH).to_string(), ranks.to_string());
    let mut command = phalanx();
    command.args(["launch", "-n", &ranks, "--", "train", "--json", "--steps", STEPS, "--clip", "0"]);
    command.args(MODEL).args(["--batch", &batch]);
    command.args(["--plan", plan, "--devices", &ranks, "--cores-per-device", "1"]);
    command
}

/// Runs a training that prints a line of JSON a step and takes the median of its rates.
fn rate_of_steps(command: &mut Command) -> Result<f64, String> {
    let output = command.output().map_err(|error| format!("cannot run {command:?}: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let steps = text.lines().filter(|line| line.starts_with("{\"step\":"));
    let rates: Vec<f64> = steps.filter_map(|step| number(step, "tokens_per_s")).skip(WARMUP).collect();
    match output.status.success() && !rates.is_empty() {
        true => Ok(median(&rates)),
        false => Err(format!("{command:?} failed\n{}", String::from_utf8_lossy(&output.stderr))),
    }
}

/// One row a round and one of medians: tokens a second, and in parentheses how much faster our two ranks are.
fn table(plan: &str, systems: &[System]) -> String {
    let row = |head: &str, cell: &dyn Fn(&System) -> String| {
        let cells: String = systems.iter().map(|system| format!("{:>22}", cell(system))).collect();
        format!("{head:8}{cells}\n")
    };
    let cell = |rate: f64, ratio: f64| format!("{rate:.0} ({ratio:.3})");
    let mut text = row(plan, &|system| system.name.clone());
    for round in 0..systems[0].rates.len() {
        let of_round = |system: &System| cell(system.rates[round], ratios(&systems[0], system)[round]);
        text += &row(&format!("round {}", round + 1), &of_round);
    }
    text + &row("median", &|system| cell(median(&system.rates), median(&ratios(&systems[0], system))))
}

/// One line with the rates and ratios of all rounds, and their medians.
fn json(plan: &str, systems: &[System]) -> String {
    let object = |system: &System| {
        let (rates, ratios) = (&system.rates, ratios(&systems[0], system));
        let (rate, ratio) = (median(rates), median(&ratios));
        let name = &system.name;
        format!(
            r#"{{"system":"{name}","tokens_per_s":{rates:?},"ratios":{ratios:?},"median_tokens_per_s":{rate},"median_ratio":{ratio}}}"#
        )
    };
    let objects: Vec<String> = systems.iter().map(object).collect();
    format!(r#"{{"plan":"{plan}","systems":[{}]}}"#, objects.join(","))
}

/// How much faster `ours` was than `other`, round by round.
fn ratios(ours: &System, other: &System) -> Vec<f64> {
    ours.rates.iter().zip(&other.rates).map(|(ours, other)| ours / other).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn systems() -> [System; 2] {
        [("ours", vec![30.0, 20.0, 40.0]), ("peer", vec![15.0, 20.0, 10.0])]
            .map(|(name, rates)| System { name: name.into(), rates })
    }

    #[test]
    fn medians_are_of_ratios_not_of_rates() {
        let text = table("dp", &systems());
        let last: Vec<&str> = text.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(last, ["median", "30", "(1.000)", "15", "(2.000)"]);
        assert_eq!(text.lines().count(), 5);
        let line = json("dp", &systems());
        assert!(
            line.contains(r#""ratios":[2.0, 1.0, 4.0],"median_tokens_per_s":15,"median_ratio":2}"#),
            "{line}"
        );
    }

    #[test]
    fn rates_are_read_from_json() {
        assert_eq!(number(r#"{"step":1,"tokens_per_s": 12.5,"lr":1}"#, "tokens_per_s"), Some(12.5));
        assert_eq!(number(r#"{"step":1}"#, "tokens_per_s"), None);
    }
}
