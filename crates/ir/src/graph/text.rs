//! Printing and parsing of flows: one line a layer.
//!
//! ```text
//! graph @mlp {
//!   %x = input f32[64, 784]
//!   %w = param init=normal(0.02) f32[10, 784]
//!   %y = linear %x, %w : f32[64, 10]
//!   return %y
//! }
//! ```
//!
//! Before `return`, a line `update %s, %v` says that a training step leaves `%v` in state `%s`.

use std::collections::HashMap;
use std::fmt;

use super::{Layer, LayerGraph, LayerId, Update, Value, ValueId};
use crate::op::TABLE;
use crate::text::{Cursor, ParseError, TextBlock, block};
use crate::{DType, Id, Op, Operators, Table, TensorType};

/// Text of what a level adds to values (the type) and layers (placements).
pub trait Label: Sized {
    /// The word that begins a graph whose layers have this label.
    const KEYWORD: &str = "graph";
    /// Writes the label; a layer's label is written with a space before it, or not at all.
    fn print(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;
    /// Reads the label back.
    fn parse(cursor: &mut Cursor<'_>) -> Result<Self, ParseError>;
    /// The type of the elements, if it is a type.
    fn element_type(&self) -> Option<DType> {
        None
    }
}

impl Label for TensorType {
    fn print(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
    fn parse(cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
        cursor.tensor_type()
    }
    fn element_type(&self) -> Option<DType> {
        Some(self.dtype)
    }
}

impl Label for () {
    fn print(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }
    fn parse(_: &mut Cursor<'_>) -> Result<Self, ParseError> {
        Ok(())
    }
}

impl<T: Label, L: Label> fmt::Display for LayerGraph<T, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print_flow(self, f)
    }
}

impl<T: Label, L: Label> LayerGraph<T, L> {
    /// Parses what is printed; `operators` are those it may use. The result is not verified.
    pub fn parse(text: impl AsRef<str>, operators: &Operators) -> Result<Self, ParseError> {
        parse_flow(text.as_ref(), operators)
    }
}

fn print_flow<T: Label, L: Label>(flow: &LayerGraph<T, L>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let names = |values: &[ValueId]| {
        let names: Vec<_> = values.iter().map(|&value| format!("%{}", flow.values[value].name)).collect();
        names.join(", ")
    };
    writeln!(f, "{} @{} {{", L::KEYWORD, flow.name)?;
    for (_, layer) in flow.layers.iter() {
        let (op, attrs) = layer.op.to_text();
        write!(f, "  {} = {op}{attrs}", names(&layer.results))?;
        let operands = names(&layer.operands);
        let before_types = match layer.op.is_leaf() {
            false if layer.operands.is_empty() => ": ",
            false => " : ",
            true if layer.operands.is_empty() => "",
            true => " ",
        };
        write!(f, " {operands}{before_types}")?;
        for (index, &result) in layer.results.iter().enumerate() {
            write!(f, "{}", if index > 0 { ", " } else { "" })?;
            flow.values[result].ty.print(f)?;
        }
        layer.label.print(f)?;
        writeln!(f)?;
    }
    for update in &flow.updates {
        writeln!(f, "  update {}", names(&[update.state, update.new]))?;
    }
    writeln!(f, "  return {}", names(&flow.outputs))?;
    write!(f, "}}")
}

fn parse_flow<T: Label, L: Label>(text: &str, operators: &Operators) -> Result<LayerGraph<T, L>, ParseError> {
    let TextBlock { name, mut lines, end } = block(text, L::KEYWORD)?;
    let Some(mut last) = lines.pop() else {
        return end.error("expected `return` before `}`");
    };
    let mut reader = Reader {
        flow: LayerGraph {
            name,
            layers: Default::default(),
            values: Default::default(),
            outputs: Vec::new(),
            updates: Vec::new(),
        },
        names: HashMap::new(),
        operators,
    };
    for mut line in lines {
        match line.eat("update") {
            true => reader.update(&mut line)?,
            false if reader.flow.updates.is_empty() => reader.layer(&mut line)?,
            false => return line.error("layers come before the updates"),
        }
    }
    last.expect("return")?;
    reader.flow.outputs = if last.at_end() { Vec::new() } else { last.list(|c| reader.value(c))? };
    if !last.at_end() {
        return last.error("text is left over after the outputs");
    }
    Ok(reader.flow)
}

struct Reader<'a, T, L> {
    flow: LayerGraph<T, L>,
    names: HashMap<String, ValueId>,
    operators: &'a Operators,
}

impl<T: Label, L: Label> Reader<'_, T, L> {
    fn layer(&mut self, line: &mut Cursor<'_>) -> Result<(), ParseError> {
        let results = line.list(|c| c.expect("%").and_then(|()| c.word()))?;
        line.expect("=")?;
        let op_name = line.word()?;
        let attrs = line.attrs()?;
        let op = (op_name != TABLE).then(|| Op::from_text(op_name, attrs.clone(), self.operators));
        let op = op.transpose().or_else(|message| line.error(message))?;
        let operands = if line.peek("%") { line.list(|c| self.value(c))? } else { Vec::new() };
        if op.as_ref().is_some_and(|op| !op.is_leaf()) {
            line.expect(":")?;
        }
        let types = line.list(T::parse)?;
        let table = |attrs| {
            let dtype = types[0].element_type().unwrap_or(DType::F32);
            Table::parse(attrs, dtype).map(Op::Table).or_else(|message| line.error(message))
        };
        let op = op.map_or_else(|| table(attrs), Ok)?;
        let label = L::parse(line)?;
        if types.len() != results.len() {
            return line.error(format!("{} results but {} types", results.len(), types.len()));
        }
        if !line.at_end() {
            return line.error("text is left over after the types");
        }
        let layer = LayerId::from_index(self.flow.layers.len());
        let mut ids = Vec::new();
        for (name, ty) in results.into_iter().zip(types) {
            let id = self.flow.values.push(Value { name: name.to_string(), ty, layer });
            if self.names.insert(name.to_string(), id).is_some() {
                return line.error(format!("%{name} is defined twice"));
            }
            ids.push(id);
        }
        self.flow.layers.push(Layer { op, operands, results: ids, label });
        Ok(())
    }

    fn update(&mut self, line: &mut Cursor<'_>) -> Result<(), ParseError> {
        let values = line.list(|c| self.value(c))?;
        let [state, new] = values[..] else {
            return line
                .error(format!("an update names a state and its new value, not {} values", values.len()));
        };
        if !line.at_end() {
            return line.error("text is left over after the update");
        }
        self.flow.updates.push(Update { state, new });
        Ok(())
    }

    fn value(&self, line: &mut Cursor<'_>) -> Result<ValueId, ParseError> {
        line.expect("%")?;
        let name = line.word()?;
        match self.names.get(name) {
            Some(&id) => Ok(id),
            None => line.error(format!("%{name} is not defined before this line")),
        }
    }
}
