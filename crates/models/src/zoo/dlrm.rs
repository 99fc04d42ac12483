//! DLRM: numbers through one stack of layers, categories through tables, products of all pairs, and another stack. Parameter
//! names are those of the reference implementation: `bot_l`, `emb_l`, `top_l`.

use phalanx_nn::{F32, I64, Init, Net, Tensor};
use serde::{Deserialize, Serialize};

use super::sample::sign;
use super::{SampleData, Samples, ZooConfig, stack};
use crate::ModelError;
use crate::check::Check;

/// The sizes of a DLRM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DlrmConfig {
    /// Numbers of a sample.
    pub numbers: usize,
    /// Tables, one for each kind of category.
    pub tables: usize,
    /// Rows of each table.
    pub entries: usize,
    /// Categories that a sample has of each kind; their rows are summed.
    pub bag: usize,
    /// Features of a row.
    pub width: usize,
    /// Features of the layers of the first stack but the last, which has `width`.
    pub bottom: Vec<usize>,
    /// Features of the layers of the last stack but the last, which has one.
    pub top: Vec<usize>,
}

impl ZooConfig for DlrmConfig {
    fn preset(size: &str) -> Option<Self> {
        let (tables, entries, bag, width, bottom, top) = match size {
            "nano" => (4, 16, 1, 16, vec![32], vec![32]),
            "small" => (8, 1_000_000, 1, 64, vec![512, 256], vec![512, 256]),
            "large" => (26, 1_000_000, 1, 128, vec![512, 256], vec![1024, 1024, 512, 256]),
            _ => return None,
        };
        Some(DlrmConfig { numbers: 13, tables, entries, bag, width, bottom, top })
    }

    fn check(&self) -> Result<(), ModelError> {
        let check = Check("dlrm");
        check.positive(&[("numbers", self.numbers), ("tables", self.tables), ("entries", self.entries)])?;
        check.positive(&[("bag", self.bag), ("width", self.width)])?;
        check.layers(self.tables)?;
        check.bounded(&[("tables", self.tables), ("entries", self.entries), ("width", self.width)])?;
        check.stack("bottom", self.numbers, &self.bottom)?;
        check.stack("top", self.width.saturating_add(self.tables.saturating_mul(self.tables)), &self.top)
    }

    fn loss(&self, net: &Net) -> Tensor {
        let batch = net.batch();
        let numbers = net.input("numbers", F32, [batch, self.numbers]);
        let clicks = net.input("clicks", F32, [batch, 1]);
        let bottom = stack(&net.at("bot_l"), &numbers, &[&self.bottom[..], &[self.width]].concat(), true);
        let mut features = vec![bottom.clone()];
        for table in 0..self.tables {
            let ids = net.input(&format!("categories.{table}"), I64, [batch, self.bag]);
            let place = net.at("emb_l").at(table).init(Init::Uniform(1.0 / (self.entries as f32).sqrt()));
            features.push(place.embedding(self.entries, self.width).bags(&ids));
        }
        let rows: Vec<Tensor> = features.iter().map(|row| row.reshape([batch, 1, self.width])).collect();
        let rows = Tensor::concat(&rows, 1);
        let pairs = rows.matmul_transposed(&rows).flatten();
        let logits = stack(
            &net.at("top_l"),
            &Tensor::concat([&bottom, &pairs], 1),
            &[&self.top[..], &[1]].concat(),
            false,
        );
        logits.binary_cross_entropy(&clicks)
    }

    /// Every category likes or dislikes clicks; most of them decide, the first number breaks ties.
    fn samples(&self, samples: &mut Samples) -> Vec<(String, SampleData)> {
        let (mut numbers, mut clicks) = (Vec::new(), Vec::new());
        let mut ids = vec![Vec::new(); self.tables];
        for _ in 0..samples.batch {
            let first = samples.signed();
            let mut score = 0.5 * first;
            numbers.push(first);
            numbers.extend((1..self.numbers).map(|_| samples.signed()));
            for (table, ids) in ids.iter_mut().enumerate() {
                for _ in 0..self.bag {
                    let id = samples.below(self.entries);
                    ids.push(id as i64);
                    score += sign(table, id);
                }
            }
            clicks.push(if score > 0.0 { 1.0 } else { 0.0 });
        }
        let ids = ids.into_iter().enumerate();
        let ids = ids.map(|(table, ids)| (format!("categories.{table}"), SampleData::I64(ids)));
        let first =
            [("numbers".into(), SampleData::F32(numbers)), ("clicks".into(), SampleData::F32(clicks))];
        first.into_iter().chain(ids).collect()
    }
}
