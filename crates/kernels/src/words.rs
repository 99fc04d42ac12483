//! Parameters of kernels as words: a program holds numbers alone, and a kernel's own struct says what they mean.
//!
//! Words may come from a file, so reading never fails: a word that is missing is zero, one that names no variant is the
//! first of them.

use arrayvec::ArrayVec;
use phalanx_ir::{Activation, Binary, DType, Precision, Reduce, RopeScaling, Unary};

/// A value that travels as parameter words.
pub trait Words: Sized {
    /// Appends the words of this value.
    fn put(&self, words: &mut Vec<u64>);

    /// Reads a value from the front of `words`, which are left without it. Allocates nothing.
    fn take(words: &mut &[u64]) -> Self;

    /// The words of this value.
    fn to_words(&self) -> Vec<u64> {
        let mut words = Vec::new();
        self.put(&mut words);
        words
    }

    /// The value these words stand for.
    fn from_words(mut words: &[u64]) -> Self {
        Self::take(&mut words)
    }
}

impl Words for u64 {
    fn put(&self, words: &mut Vec<u64>) {
        words.push(*self);
    }
    fn take(words: &mut &[u64]) -> Self {
        words.split_off_first().copied().unwrap_or(0)
    }
}

/// Nothing at all if there is none, so it must come last.
impl Words for Option<i64> {
    fn put(&self, words: &mut Vec<u64>) {
        if let Some(value) = self {
            words.extend([1, *value as u64]);
        }
    }
    fn take(words: &mut &[u64]) -> Self {
        (u64::take(words) != 0).then(|| i64::take(words))
    }
}

/// Values of one word, by the conversions from and to it.
macro_rules! one_word {
    ($($type:ty: $word:ident => $from:expr, $value:ident => $to:expr;)*) => {$(
        impl Words for $type {
            fn put(&self, words: &mut Vec<u64>) {
                let $value = *self;
                words.push($to);
            }
            fn take(words: &mut &[u64]) -> Self {
                let $word = u64::take(words);
                $from
            }
        }
    )*};
}

one_word! {
    usize: word => word as usize, value => value as u64;
    i64: word => word as i64, value => value as u64;
    bool: word => word != 0, value => u64::from(value);
    f32: word => f32::from_bits(word as u32), value => u64::from(value.to_bits());
    Activation: word => variant(Activation::ALL, word), value => value as u64;
    Binary: word => variant(Binary::ALL, word), value => value as u64;
    Reduce: word => variant(Reduce::ALL, word), value => value as u64;
    DType: word => variant(&DType::ALL, word), value => value as u64;
    Precision: word => variant(Precision::ALL, word), value => value as u64;
}

/// Variant number `word`.
fn variant<T: Copy>(all: &[T], word: u64) -> T {
    all.get(word as usize).copied().unwrap_or(all[0])
}

impl<T: Words, const N: usize> Words for [T; N] {
    fn put(&self, words: &mut Vec<u64>) {
        self.iter().for_each(|value| value.put(words));
    }
    fn take(words: &mut &[u64]) -> Self {
        std::array::from_fn(|_| T::take(words))
    }
}

/// How many, then each.
impl<T: Words, const N: usize> Words for ArrayVec<T, N> {
    fn put(&self, words: &mut Vec<u64>) {
        self.len().put(words);
        self.iter().for_each(|value| value.put(words));
    }
    fn take(words: &mut &[u64]) -> Self {
        let count = usize::take(words).min(N);
        (0..count).map(|_| T::take(words)).collect()
    }
}

/// A number, then factor, low, high and positions, which are zero where the scaling has none.
impl Words for RopeScaling {
    fn put(&self, words: &mut Vec<u64>) {
        let (number, factors, original) = match *self {
            RopeScaling::None => (0, [0.0; 3], 0),
            RopeScaling::Linear { factor } => (1, [factor, 0.0, 0.0], 0),
            RopeScaling::Dynamic { factor } => (2, [factor, 0.0, 0.0], 0),
            RopeScaling::Llama3 { factor, low, high, original } => (3, [factor, low, high], original),
        };
        words.push(number);
        factors.put(words);
        original.put(words);
    }
    fn take(words: &mut &[u64]) -> Self {
        let (number, [factor, low, high], original) =
            (u64::take(words), <[f32; 3]>::take(words), usize::take(words));
        match number {
            1 => RopeScaling::Linear { factor },
            2 => RopeScaling::Dynamic { factor },
            3 => RopeScaling::Llama3 { factor, low, high, original },
            _ => RopeScaling::None,
        }
    }
}

/// A number, then the scalar, which is zero where the function has none.
impl Words for Unary {
    fn put(&self, words: &mut Vec<u64>) {
        let (name, scalar) = self.parts();
        let number = (0..FUNCTIONS).find(|&number| function(number, 0.0).parts().0 == name);
        words.push(number.unwrap_or(0));
        scalar.unwrap_or(0.0).put(words);
    }
    fn take(words: &mut &[u64]) -> Self {
        let number = u64::take(words);
        function(number, f32::take(words))
    }
}

/// Functions that have a number.
const FUNCTIONS: u64 = 22;

/// Function number `number`; those with a scalar have this one.
fn function(number: u64, scalar: f32) -> Unary {
    use Unary::*;
    const PLAIN: [Unary; 10] = [Exp, Log, Sqrt, Rsqrt, Sin, Cos, Elu, Neg, Square, Abs];
    const SCALAR: [fn(f32) -> Unary; 5] = [AddScalar, SubScalar, MulScalar, DivScalar, PowScalar];
    match number as usize {
        number @ 1..=6 => Act(Activation::ALL[number]),
        number @ 7..=16 => PLAIN[number - 7],
        number @ 17..=21 => SCALAR[number - 17](scalar),
        _ => Identity,
    }
}

/// Declares a parameter struct whose fields are [`Words`], which makes it [`Words`] too.
#[macro_export]
macro_rules! params {
    ($(#[$meta:meta])* $vis:vis struct $name:ident { $($(#[$field_meta:meta])* pub $field:ident: $type:ty,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        $vis struct $name { $($(#[$field_meta])* pub $field: $type,)* }

        impl $crate::Words for $name {
            fn put(&self, words: &mut Vec<u64>) {
                let _ = &words;
                $($crate::Words::put(&self.$field, words);)*
            }
            fn take(words: &mut &[u64]) -> Self {
                let _ = &words;
                Self { $($field: $crate::Words::take(words)),* }
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_is_its_own_words() {
        let all = Unary::all(-0.5);
        assert_eq!(all.len(), FUNCTIONS as usize);
        for function in all {
            let words = function.to_words();
            assert_eq!(Unary::from_words(&words), function, "{words:?}");
        }
        assert_eq!(Unary::Act(Activation::Tanh).to_words(), [6, 0]);
        assert_eq!(Unary::PowScalar(2.0).to_words(), [21, u64::from(2f32.to_bits())]);
    }

    #[test]
    fn every_scaling_is_its_own_words() {
        for text in ["none", "linear:2.5", "dynamic:2", "llama3:8,1,4,8192"] {
            let scaling: RopeScaling = text.parse().unwrap();
            assert_eq!(RopeScaling::from_words(&scaling.to_words()), scaling);
        }
    }

    #[test]
    fn any_words_are_read() {
        assert_eq!(<[usize; 3]>::from_words(&[7]), [7, 0, 0]);
        assert_eq!(Unary::from_words(&[u64::MAX]), Unary::Identity);
        assert_eq!(Activation::from_words(&[99]), Activation::None);
        assert_eq!(ArrayVec::<usize, 2>::from_words(&[9, 5]).as_slice(), [5, 0]);
    }

    #[test]
    fn variants_are_numbered_in_the_order_of_their_list() {
        assert!(Activation::ALL.iter().zip(0..).all(|(value, word)| value.to_words() == [word]));
        assert!(Binary::ALL.iter().zip(0..).all(|(value, word)| value.to_words() == [word]));
        assert!(Reduce::ALL.iter().zip(0..).all(|(value, word)| value.to_words() == [word]));
        assert!(DType::ALL.iter().zip(0..).all(|(value, word)| value.to_words() == [word]));
    }
}
