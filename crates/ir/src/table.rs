//! Tables: constant tensors whose elements are a part of the model.
//!
//! In a text a table is named by the hash of its bytes, and the bytes lie beside the text; up to [`INLINE`] elements are
//! written out instead. A table read from its hash alone has no bytes until they are given to the graph
//! ([`LayerGraph::provide_table`](crate::graph::LayerGraph::provide_table)).

use std::fmt::Display;
use std::str::FromStr;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_128;

use crate::text::Attrs;
use crate::{DType, TensorType};

/// The most elements that a text writes out.
pub const INLINE: usize = 64;

/// The elements of a constant tensor, row-major.
#[derive(Clone)]
pub struct Table {
    dtype: DType,
    hash: u128,
    /// Little-endian, as in the memory of devices.
    bytes: Option<Arc<[u8]>>,
}

impl Table {
    /// A table of elements of type `dtype` with these bytes: little-endian, truth values one byte each.
    pub fn new(dtype: DType, bytes: impl Into<Arc<[u8]>>) -> Table {
        let bytes = bytes.into();
        Table { dtype, hash: xxh3_128(&bytes), bytes: Some(bytes) }
    }

    /// A table of 32-bit floats.
    pub fn f32s(elements: &[f32]) -> Table {
        Table::new(DType::F32, elements.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>())
    }

    /// A table of 64-bit integers.
    pub fn i64s(elements: &[i64]) -> Table {
        Table::new(DType::I64, elements.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>())
    }

    /// A table of 32-bit integers.
    pub fn i32s(elements: &[i32]) -> Table {
        Table::new(DType::I32, elements.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>())
    }

    /// A table of truth values.
    pub fn bools(elements: &[bool]) -> Table {
        Table::new(DType::Bool, elements.iter().map(|&x| u8::from(x)).collect::<Vec<_>>())
    }

    /// The 128-bit XXH3 of its bytes.
    pub fn hash(&self) -> u128 {
        self.hash
    }

    /// The type of its elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Its bytes, unless it was read from a text that has only their hash.
    pub fn bytes(&self) -> Option<&Arc<[u8]>> {
        self.bytes.as_ref()
    }

    /// Takes these bytes if they are its own.
    pub(crate) fn provide(&mut self, bytes: &Arc<[u8]>, hash: u128) -> bool {
        let is_own = self.bytes.is_none() && self.hash == hash;
        if is_own {
            self.bytes = Some(Arc::clone(bytes));
        }
        is_own
    }

    /// Its elements in double precision; `None` without bytes. Integers beyond 2^53 are rounded.
    pub fn elements(&self) -> Option<Vec<f64>> {
        let bytes = self.bytes.as_ref()?;
        Some(match self.dtype {
            DType::F32 => numbers(bytes, f32::from_le_bytes).map(f64::from).collect(),
            DType::I64 => numbers(bytes, i64::from_le_bytes).map(|x| x as f64).collect(),
            DType::I32 => numbers(bytes, i32::from_le_bytes).map(f64::from).collect(),
            DType::Bf16 | DType::Bool => bytes.iter().map(|&byte| f64::from(byte)).collect(),
        })
    }

    /// Its elements as integers; `None` without bytes or if they are others.
    pub fn integers(&self) -> Option<Vec<i64>> {
        let bytes = self.bytes.as_ref()?;
        match self.dtype {
            DType::I64 => Some(numbers(bytes, i64::from_le_bytes).collect()),
            DType::I32 => Some(numbers(bytes, i32::from_le_bytes).map(i64::from).collect()),
            _ => None,
        }
    }

    /// What is wrong with a table of type `ty`, and what would mend it.
    pub(crate) fn check(&self, ty: &TensorType) -> Result<(), (&'static str, &'static str)> {
        let bytes = self.bytes.as_deref();
        match self.dtype {
            DType::Bf16 => Err(("cannot be a table", "use f32, i64, i32 or bool")),
            dtype if dtype != ty.dtype => Err(("is not the type of its elements", "write their type")),
            _ if bytes.is_some_and(|bytes| bytes.len() != ty.bytes()) => {
                Err(("has another number of elements than its data", "give one for each place"))
            }
            DType::Bool if bytes.is_some_and(|bytes| bytes.iter().any(|&byte| byte > 1)) => {
                Err(("holds a byte that is neither 0 nor 1", "write 0 for false and 1 for true"))
            }
            _ => Ok(()),
        }
    }

    /// Its attributes as text: `data=[…]` if it is small, else `hash=…`.
    pub(crate) fn attrs(&self) -> Attrs {
        let words = self.bytes.as_ref().filter(|bytes| bytes.len() <= INLINE * self.dtype.bytes());
        match words.map(|bytes| words_of(self.dtype, bytes)) {
            Some(words) => Attrs::new().with_words("data", words),
            None => Attrs::new().with("hash", format!("{:032x}", self.hash)),
        }
    }

    /// The table that `attrs` stand for; `dtype` is that of its written type.
    pub(crate) fn parse(mut attrs: Attrs, dtype: DType) -> Result<Table, String> {
        let table = if attrs.has("data") {
            let words = attrs.take_words("data")?;
            if words.len() > INLINE {
                let count = words.len();
                return Err(format!(
                    "a text has at most {INLINE} elements of a table, not {count}: give its hash"
                ));
            }
            Table::new(dtype, bytes_of(dtype, &words)?)
        } else {
            let word: String = attrs.take("hash").map_err(|_| "a table needs `hash=…` or `data=[…]`")?;
            let hash = Some(&word).filter(|word| word.len() == 32 && !word.starts_with('+'));
            let hash = hash.and_then(|word| u128::from_str_radix(word, 16).ok());
            let hash = hash.ok_or_else(|| format!("`{word}` is not a hash of 32 hexadecimal digits"))?;
            Table { dtype, hash, bytes: None }
        };
        attrs.finish()?;
        Ok(table)
    }
}

/// The numbers that some bytes are.
fn numbers<const N: usize, T>(bytes: &[u8], number: impl Fn([u8; N]) -> T) -> impl Iterator<Item = T> {
    bytes.as_chunks::<N>().0.iter().map(move |&bytes| number(bytes))
}

/// Elements as text. A float that is no number shows its bits, since there are several.
fn words_of(dtype: DType, bytes: &[u8]) -> Vec<String> {
    fn all<T: Display>(numbers: impl Iterator<Item = T>) -> Vec<String> {
        numbers.map(|number| number.to_string()).collect()
    }
    let float = |x: f32| if x.is_nan() { format!("nan({:08x})", x.to_bits()) } else { x.to_string() };
    match dtype {
        DType::F32 => all(numbers(bytes, f32::from_le_bytes).map(float)),
        DType::I64 => all(numbers(bytes, i64::from_le_bytes)),
        DType::I32 => all(numbers(bytes, i32::from_le_bytes)),
        DType::Bf16 | DType::Bool => all(bytes.iter()),
    }
}

/// The bytes of elements in a text.
fn bytes_of(dtype: DType, words: &[String]) -> Result<Vec<u8>, String> {
    fn all<const N: usize, T: FromStr>(
        dtype: DType,
        words: &[String],
        bytes: impl Fn(T) -> [u8; N],
    ) -> Result<Vec<u8>, String> {
        let read =
            |word: &String| word.parse().map_err(|_| format!("`{word}` is not an element of type {dtype}"));
        let numbers: Vec<T> = words.iter().map(read).collect::<Result<_, _>>()?;
        Ok(numbers.into_iter().flat_map(bytes).collect())
    }
    match dtype {
        DType::F32 => all(dtype, words, |Float(x)| x.to_le_bytes()),
        DType::I64 => all(dtype, words, i64::to_le_bytes),
        DType::I32 => all(dtype, words, i32::to_le_bytes),
        DType::Bool => all(dtype, words, |Bit(bit)| [bit]),
        DType::Bf16 => Err("a table holds f32, i64, i32 or bool, not bf16".into()),
    }
}

/// A float as tables write it.
struct Float(f32);

impl FromStr for Float {
    type Err = ();
    fn from_str(word: &str) -> Result<Self, ()> {
        let Some(bits) = word.strip_prefix("nan(").and_then(|word| word.strip_suffix(')')) else {
            return word.parse().map(Float).map_err(drop);
        };
        let value = u32::from_str_radix(bits, 16).map(f32::from_bits).map_err(drop)?;
        if value.is_nan() { Ok(Float(value)) } else { Err(()) }
    }
}

/// A truth value as tables write it.
struct Bit(u8);

impl FromStr for Bit {
    type Err = ();
    fn from_str(word: &str) -> Result<Self, ()> {
        match word {
            "0" | "false" => Ok(Bit(0)),
            "1" | "true" => Ok(Bit(1)),
            _ => Err(()),
        }
    }
}
