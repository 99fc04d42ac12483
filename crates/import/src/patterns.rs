//! Groups of nodes that are one layer here. A pattern looks at every number of what it replaces, never at names; what is no
//! longer needed is left out of the graph later.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Value, json};

use crate::call::reference;
use crate::format::{Leaf, Node, Reference};
use crate::rules::base;

/// Replaces the last node of every group that is one layer.
pub(crate) fn recognized(nodes: &[Node], leaves: &[Leaf]) -> Vec<Node> {
    let found = Found {
        nodes: nodes.iter().map(|node| (&*node.name, node)).collect(),
        leaves: leaves.iter().map(|leaf| (&*leaf.name, leaf)).collect(),
    };
    nodes.iter().map(|node| found.rms_norm(node).unwrap_or_else(|| node.clone())).collect()
}

struct Found<'a> {
    nodes: HashMap<&'a str, &'a Node>,
    leaves: HashMap<&'a str, &'a Leaf>,
}

impl Found<'_> {
    /// The node that makes an argument, if it applies this operator.
    fn made_by(&self, node: &Node, argument: &str, operator: &str) -> Option<&Node> {
        let made = self.nodes.get(&*reference(node.args.get(argument)?)?.v)?;
        (base(&made.op) == operator).then_some(*made)
    }

    fn shape(&self, reference: &Reference) -> Option<&[usize]> {
        match self.nodes.get(&*reference.v) {
            Some(node) => Some(&node.results.get(reference.i)?.shape),
            None => self.leaves.get(&*reference.v).map(|leaf| &leaf.shape[..]),
        }
    }

    /// x · rsqrt(mean(x², last) + eps) · weight.
    fn rms_norm(&self, node: &Node) -> Option<Node> {
        if base(&node.op) != "aten.mul" {
            return None;
        }
        let width = *node.results.first()?.shape.last()?;
        [["self", "other"], ["other", "self"]].into_iter().find_map(|[normed, weight]| {
            let product = self.made_by(node, normed, "aten.mul")?;
            let weight = reference(node.args.get(weight)?)?;
            let (x, eps) = self.normalized(product)?;
            let fits = self.shape(&weight)? == [width] && self.shape(&x)? == node.results[0].shape;
            fits.then(|| self.norm_node(node, &x, &weight, width, eps))
        })
    }

    fn norm_node(&self, node: &Node, x: &Reference, weight: &Reference, width: usize, eps: f64) -> Node {
        let value = |reference: &Reference| json!({ "v": reference.v, "i": reference.i });
        let args: BTreeMap<String, Value> = [
            ("input".to_string(), value(x)),
            ("weight".to_string(), value(weight)),
            ("normalized_shape".to_string(), json!([width])),
            ("eps".to_string(), json!(eps)),
        ]
        .into();
        Node { op: "aten.rms_norm".into(), args, ..node.clone() }
    }

    /// What `product` normalizes, and what is added to its mean square.
    fn normalized(&self, product: &Node) -> Option<(Reference, f64)> {
        [["self", "other"], ["other", "self"]].into_iter().find_map(|[x, root]| {
            let x = reference(product.args.get(x)?)?;
            let sum = self.made_by(self.made_by(product, root, "aten.rsqrt")?, "self", "aten.add")?;
            let eps = sum.args.get("other")?.as_f64().filter(|eps| *eps > 0.0)?;
            let is_plain = sum.args.get("alpha").is_none_or(|alpha| alpha.as_f64() == Some(1.0));
            let mean = self.made_by(sum, "self", "aten.mean")?;
            let rank = self.shape(&x)?.len() as i64;
            let dims: Vec<i64> = serde_json::from_value(mean.args.get("dim")?.clone()).ok()?;
            let is_last = dims == [-1] || dims == [rank - 1];
            let keeps = mean.args.get("keepdim")? == true;
            let square = self.made_by(mean, "self", "aten.pow")?;
            let is_square = square.args.get("exponent")?.as_f64() == Some(2.0);
            let same = reference(square.args.get("self")?)? == x;
            (is_plain && is_last && keeps && is_square && same).then_some((x, eps))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(change: impl Fn(&mut Vec<Value>)) -> Vec<Node> {
        let full = json!([{ "dtype": "f32", "shape": [2, 3, 8] }]);
        let one = json!([{ "dtype": "f32", "shape": [2, 3, 1] }]);
        let mut list = vec![
            json!({ "name": "p", "op": "aten.pow.Tensor_Scalar", "args": { "self": { "v": "x" }, "exponent": 2 }, "results": full }),
            json!({ "name": "m", "op": "aten.mean.dim", "args": { "self": { "v": "p" }, "dim": [-1], "keepdim": true }, "results": one }),
            json!({ "name": "a", "op": "aten.add.Tensor", "args": { "self": { "v": "m" }, "other": 1e-6, "alpha": 1 }, "results": one }),
            json!({ "name": "r", "op": "aten.rsqrt", "args": { "self": { "v": "a" } }, "results": one }),
            json!({ "name": "y", "op": "aten.mul.Tensor", "args": { "self": { "v": "x" }, "other": { "v": "r" } }, "results": full }),
            json!({ "name": "z", "op": "aten.mul.Tensor", "args": { "self": { "v": "w" }, "other": { "v": "y" } }, "results": full }),
        ];
        change(&mut list);
        let leaf = |name: &str, shape: Value| json!({ "name": name, "dtype": "f32", "shape": shape, "role": "param" });
        let leaves: Vec<Leaf> =
            [leaf("x", json!([2, 3, 8])), leaf("w", json!([8])), leaf("v", json!([3, 1]))]
                .into_iter()
                .map(|leaf| serde_json::from_value(leaf).unwrap())
                .collect();
        let list: Vec<Node> = list.into_iter().map(|node| serde_json::from_value(node).unwrap()).collect();
        recognized(&list, &leaves)
    }

    #[test]
    fn a_written_out_rms_norm_is_recognized_by_its_numbers() {
        let found = nodes(|_| ());
        let norm = found.last().unwrap();
        assert_eq!((&*norm.op, &norm.args["eps"]), ("aten.rms_norm", &json!(1e-6)));
        let others: [fn(&mut Vec<Value>); 6] = [
            |list| list[0]["args"]["exponent"] = json!(3),
            |list| list[1]["args"]["dim"] = json!([1]),
            |list| list[1]["args"]["keepdim"] = json!(false),
            |list| list[2]["args"]["alpha"] = json!(2),
            |list| list[4]["args"]["self"] = json!({ "v": "p" }),
            |list| list[5]["args"]["self"] = json!({ "v": "v" }),
        ];
        for change in others {
            assert!(nodes(change).iter().all(|node| node.op != "aten.rms_norm"), "it must not fire");
        }
    }
}
