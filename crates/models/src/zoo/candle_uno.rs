//! CANDLE-Uno: each kind of feature has a stack of layers of its own, which the two drugs share; what they give is joined with
//! the doses and goes through another stack, to the growth of the cells.

use phalanx_nn::{F32, Net, Tensor};
use serde::{Deserialize, Serialize};

use super::{SampleData, Samples, ZooConfig};
use crate::ModelError;
use crate::check::Check;

/// The sizes of a CANDLE-Uno.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CandleUnoConfig {
    /// Features of a cell line.
    pub cell: usize,
    /// Descriptors of a drug.
    pub descriptors: usize,
    /// Fingerprints of a drug.
    pub fingerprints: usize,
    /// Features of the layers for each kind of feature.
    pub towers: Vec<usize>,
    /// Features of the layers behind them but the last, which has one.
    pub top: Vec<usize>,
}

impl ZooConfig for CandleUnoConfig {
    fn preset(size: &str) -> Option<Self> {
        let (cell, descriptors, fingerprints, towers, top) = match size {
            "nano" => (24, 32, 16, vec![32, 32], vec![32]),
            "small" => (942, 5270, 2048, vec![1000; 3], vec![1000; 3]),
            "large" => (942, 5270, 2048, vec![4192; 8], vec![4192; 4]),
            _ => return None,
        };
        Some(CandleUnoConfig { cell, descriptors, fingerprints, towers, top })
    }

    fn check(&self) -> Result<(), ModelError> {
        let check = Check("candle-uno");
        let features =
            [("cell", self.cell), ("descriptors", self.descriptors), ("fingerprints", self.fingerprints)];
        check.positive(&features)?;
        features.iter().try_for_each(|(name, size)| check.stack(name, *size, &self.towers))?;
        let last = self.towers.last().copied().unwrap_or(self.descriptors);
        check.stack("top", last.saturating_mul(5).saturating_add(2), &self.top)
    }

    fn loss(&self, net: &Net) -> Tensor {
        let input = |name: &str, size: usize| net.input(name, F32, [net.batch(), size]);
        let growth = input("growth", 1);
        let mut joined = vec![input("dose1", 1), input("dose2", 1)];
        let kinds = [
            ("cell_rnaseq", self.cell, vec!["cell_rnaseq"]),
            ("drug_descriptors", self.descriptors, vec!["drug1_descriptors", "drug2_descriptors"]),
            ("drug_fingerprints", self.fingerprints, vec!["drug1_fingerprints", "drug2_fingerprints"]),
        ];
        for (kind, size, names) in kinds {
            let inputs: Vec<Tensor> = names.iter().map(|name| input(name, size)).collect();
            joined.extend(self.tower(&net.at("towers").at(kind), inputs));
        }
        let mut x = Tensor::concat(&joined, 1);
        for (index, &width) in self.top.iter().enumerate() {
            x = net.at("top").at(index).linear(&x, width).relu();
        }
        net.at("head").linear(&x, 1).mse(&growth)
    }

    /// The response is a product of dose and how the first features of cell and drugs match.
    fn samples(&self, samples: &mut Samples) -> Vec<(String, SampleData)> {
        let sizes = [
            ("dose1", 1),
            ("dose2", 1),
            ("cell_rnaseq", self.cell),
            ("drug1_descriptors", self.descriptors),
            ("drug1_fingerprints", self.fingerprints),
            ("drug2_descriptors", self.descriptors),
            ("drug2_fingerprints", self.fingerprints),
        ];
        let mut all: Vec<(String, Vec<f32>)> = Vec::new();
        for (name, size) in sizes {
            all.push((name.to_string(), (0..samples.batch * size).map(|_| samples.signed()).collect()));
        }
        let first = |input: usize, sample: usize| all[input].1[sample * sizes[input].1];
        let growth = |sample: usize| {
            let match_of = |drug: usize| (first(2, sample) + first(drug, sample)).max(0.0);
            first(0, sample) * 0.5 + match_of(3) + 0.5 * match_of(5)
        };
        let growth: Vec<f32> = (0..samples.batch).map(growth).collect();
        all.push(("growth".into(), growth));
        all.into_iter().map(|(name, values)| (name, SampleData::F32(values))).collect()
    }
}

impl CandleUnoConfig {
    /// The same layers for all inputs of a kind.
    fn tower(&self, net: &Net, inputs: Vec<Tensor>) -> Vec<Tensor> {
        let Some(rows) = inputs.first().map(|first| first.dims()[0]) else { return inputs };
        let count = inputs.len();
        // One batch of all of them, so that the parameters are made and used once.
        let mut x = Tensor::concat(&inputs, 1).reshape([rows, count, inputs[0].last()]);
        for (index, &width) in self.towers.iter().enumerate() {
            x = net.at(index).linear(&x, width).relu();
        }
        let width = x.last();
        x.split(1, vec![1; count]).iter().map(|part| part.reshape([rows, width])).collect()
    }
}
