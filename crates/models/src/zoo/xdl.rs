//! XDL: categories through tables, joined, and a stack of layers with a squared error.

use phalanx_nn::{F32, I64, Net, Tensor};
use serde::{Deserialize, Serialize};

use super::sample::sign;
use super::{SampleData, Samples, ZooConfig, stack};
use crate::ModelError;
use crate::check::Check;

/// The sizes of an XDL model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct XdlConfig {
    /// Tables, one for each kind of category.
    pub tables: usize,
    /// Rows of each table.
    pub entries: usize,
    /// Categories that a sample has of each kind; their rows are summed.
    pub bag: usize,
    /// Features of a row.
    pub width: usize,
    /// Features of the layers but the last, which has one.
    pub top: Vec<usize>,
}

impl ZooConfig for XdlConfig {
    fn preset(size: &str) -> Option<Self> {
        let (entries, bag, width, top) = match size {
            "nano" => (16, 1, 16, vec![64, 32]),
            "small" => (1_000_000, 1, 64, vec![256, 256, 256]),
            _ => return None,
        };
        Some(XdlConfig { tables: 4, entries, bag, width, top })
    }

    fn check(&self) -> Result<(), ModelError> {
        let check = Check("xdl");
        check.positive(&[("tables", self.tables), ("entries", self.entries), ("bag", self.bag)])?;
        check.positive(&[("width", self.width)])?;
        check.layers(self.tables)?;
        check.bounded(&[("tables", self.tables), ("entries", self.entries), ("width", self.width)])?;
        check.stack("top", self.tables.saturating_mul(self.width), &self.top)
    }

    fn loss(&self, net: &Net) -> Tensor {
        let label = net.input("label", F32, [net.batch(), 1]);
        let mut rows = Vec::new();
        for table in 0..self.tables {
            let ids = net.input(&format!("categories.{table}"), I64, [net.batch(), self.bag]);
            rows.push(net.at("embedding").at(table).embedding(self.entries, self.width).bags(&ids));
        }
        let joined = Tensor::concat(&rows, 1);
        stack(&net.at("top"), &joined, &[&self.top[..], &[1]].concat(), false).mse(&label)
    }

    /// Every category adds its sign to the label.
    fn samples(&self, samples: &mut Samples) -> Vec<(String, SampleData)> {
        let mut labels = vec![0.0; samples.batch];
        let mut all = Vec::new();
        for table in 0..self.tables {
            let mut ids = Vec::new();
            for label in &mut labels {
                for _ in 0..self.bag {
                    let id = samples.below(self.entries);
                    ids.push(id as i64);
                    *label += 0.25 * sign(table, id);
                }
            }
            all.push((format!("categories.{table}"), SampleData::I64(ids)));
        }
        all.push(("label".into(), SampleData::F32(labels)));
        all
    }
}
