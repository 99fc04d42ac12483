//! The attributes of an operator case. Axes may count from the end, as in PyTorch. An attribute that no reader asks for is
//! an error: what it says would not be tested.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde::de::DeserializeOwned;

use super::{Case, GoldenError};

/// What the shapes of operands say as well.
const IMPLIED: &[&str] = &["out_features", "num_entries", "out_channels", "kv_heads", "use_bias", "sorted"];

/// See the head of the file.
pub struct CaseAttrs<'a> {
    case: &'a Case,
    read: RefCell<BTreeSet<String>>,
}

impl<'a> CaseAttrs<'a> {
    /// Those of `case`, none of which is read yet.
    pub fn new(case: &'a Case) -> Self {
        CaseAttrs { case, read: RefCell::default() }
    }

    /// The attribute `key`; for a type that may be absent it may be.
    pub fn get<T: DeserializeOwned>(&self, key: &str) -> Result<T, GoldenError> {
        self.read.borrow_mut().insert(key.to_string());
        let value = self.case.attrs.get(key).cloned().unwrap_or_default();
        serde_json::from_value(value).map_err(|error| self.case.wrong(format!("attribute `{key}`: {error}")))
    }

    /// The attribute `key` or, if it is absent, `default`.
    pub fn or<T: DeserializeOwned>(&self, key: &str, default: T) -> Result<T, GoldenError> {
        Ok(self.get::<Option<T>>(key)?.unwrap_or(default))
    }

    /// An axis of operand `slot`.
    pub fn axis(&self, key: &str, slot: &str) -> Result<usize, GoldenError> {
        self.counted(key, slot, self.get(key)?)
    }

    /// Axes of operand `slot`, in the case's order.
    pub fn places(&self, key: &str, slot: &str) -> Result<Vec<usize>, GoldenError> {
        self.get::<Vec<i64>>(key)?.into_iter().map(|axis| self.counted(key, slot, axis)).collect()
    }

    /// Axes of operand `slot`, in ascending order.
    pub fn axes(&self, key: &str, slot: &str) -> Result<Vec<usize>, GoldenError> {
        let mut axes = self.places(key, slot)?;
        axes.sort_unstable();
        Ok(axes)
    }

    /// The number of an axis of operand `slot` that may count from the end.
    fn counted(&self, key: &str, slot: &str, axis: i64) -> Result<usize, GoldenError> {
        let rank = self.case.inputs.get(slot).map_or(0, |tensor| tensor.shape.len());
        let counted = if axis < 0 { axis.saturating_add(rank as i64) } else { axis };
        let wrong = || {
            self.case.wrong(format!("attribute `{key}`: {axis} is no axis of `{slot}`, whose rank is {rank}"))
        };
        usize::try_from(counted).ok().filter(|&axis| axis < rank).ok_or_else(wrong)
    }

    /// The shape `key` for so many elements: one extent may be -1, which stands for what is left.
    pub fn shape(&self, key: &str, elements: usize) -> Result<Vec<usize>, GoldenError> {
        let dims: Vec<i64> = self.get(key)?;
        let known = dims.iter().filter(|&&extent| extent >= 0);
        let known = known.fold(1usize, |product, &extent| product.saturating_mul(extent as usize));
        let left = elements.checked_div(known).unwrap_or(0);
        Ok(dims.into_iter().map(|extent| usize::try_from(extent).unwrap_or(left)).collect())
    }

    /// That the attributes were all of use.
    pub fn finish(&self) -> Result<(), GoldenError> {
        let read = self.read.borrow();
        let is_unread = |key: &&String| !read.contains(*key) && !IMPLIED.contains(&key.as_str());
        match self.case.attrs.keys().find(is_unread) {
            None => Ok(()),
            Some(key) => Err(self.case.wrong(format!("attribute `{key}` is not one of `{}`", self.case.op))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(attrs: &str) -> Case {
        let text = format!(
            r#"{{"id": "a", "op": "reduce", "attrs": {attrs}, "outputs": {{}}, "output_grads": {{}}, "input_grads": {{}},
               "inputs": {{"input": {{"dtype": "f32", "shape": [2, 3, 4], "data": []}}}}}}"#
        );
        serde_json::from_str(&text).expect("the text is a case")
    }

    #[test]
    fn axes_may_count_from_the_end() {
        let case = case(r#"{"axes": [-1, 0], "shape": [-1, 6], "axis": 3}"#);
        let attrs = CaseAttrs::new(&case);
        assert_eq!(attrs.axes("axes", "input").expect("they are axes"), [0, 2]);
        assert_eq!(attrs.shape("shape", 24).expect("it is a shape"), [4, 6]);
        let error = attrs.axis("axis", "input").expect_err("there are three");
        assert_eq!(error.to_string(), "case `a`: attribute `axis`: 3 is no axis of `input`, whose rank is 3");
    }

    #[test]
    fn an_attribute_that_is_not_read_is_an_error() {
        let case = case(r#"{"kind": "sum", "sorted": true, "dilation": [2]}"#);
        let attrs = CaseAttrs::new(&case);
        assert_eq!(attrs.or("kind", String::new()).expect("it is a word"), "sum");
        let error = attrs.finish().expect_err("dilation is not read");
        assert_eq!(error.to_string(), "case `a`: attribute `dilation` is not one of `reduce`");
        assert_eq!(attrs.or("dilation", vec![1]).expect("it is a list"), [2]);
        attrs.finish().expect("all are read");
    }
}
