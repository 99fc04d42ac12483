//! Numbers on which arithmetic that only looks right is wrong.

use std::fmt;

/// How many triples of each class are tried.
pub(crate) const COUNT: usize = 4096;

/// A kind of operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperandClass {
    /// Numbers of similar sizes.
    Normal,
    /// The third operand is the rounded product of the others, negated: what is left is the rounding.
    Cancelling,
    /// Products are about as small as the smallest normal number.
    Subnormal,
    /// Zeros of both signs, ones, and the smallest and largest numbers.
    Special,
    /// Any bits: infinities and NaNs among them.
    AnyBits,
}

impl OperandClass {
    /// All classes.
    pub const ALL: [OperandClass; 5] = [
        OperandClass::Normal,
        OperandClass::Cancelling,
        OperandClass::Subnormal,
        OperandClass::Special,
        OperandClass::AnyBits,
    ];
}

impl fmt::Display for OperandClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            OperandClass::Normal => "normal",
            OperandClass::Cancelling => "cancelling",
            OperandClass::Subnormal => "subnormal",
            OperandClass::Special => "special",
            OperandClass::AnyBits => "any bits",
        })
    }
}

/// A format of numbers that is probed.
pub(crate) trait Number: bytemuck::Pod + PartialEq + fmt::LowerExp {
    /// A number of either sign between 1 and 2, times 2 to the power of `exponent`.
    fn scaled(random: &mut Random, exponent: i32) -> Self;
    /// Any bits.
    fn any(random: &mut Random) -> Self;
    /// The exponent of the smallest normal number.
    const SMALLEST: i32;
    /// Numbers with which rules end.
    const SPECIAL: [Self; 10];
    /// `a * b`, rounded and negated.
    fn minus_product(a: Self, b: Self) -> Self;
    /// Its bits; all NaNs have the same.
    fn bits(self) -> u64;
}

macro_rules! number {
    ($type:ident, $bits:ident, $fraction:literal, $smallest:literal) => {
        impl Number for $type {
            const SMALLEST: i32 = $smallest;
            const SPECIAL: [$type; 10] = [
                0.0,
                -0.0,
                1.0,
                -1.0,
                $type::MIN_POSITIVE,
                -$type::MIN_POSITIVE,
                $type::from_bits(1),
                $type::from_bits(1 | 1 << ($bits::BITS - 1)),
                $type::MAX,
                $type::MIN,
            ];

            fn scaled(random: &mut Random, exponent: i32) -> $type {
                let fraction = (random.next() as $bits) & ((1 << $fraction) - 1);
                let sign = $bits::from(random.next() as u8 & 1) << ($bits::BITS - 1);
                let exponent = (exponent - $smallest + 1) as $bits;
                $type::from_bits(sign | exponent << $fraction | fraction)
            }

            fn any(random: &mut Random) -> $type {
                $type::from_bits(random.next() as $bits)
            }

            fn minus_product(a: $type, b: $type) -> $type {
                -(a * b)
            }

            fn bits(self) -> u64 {
                u64::from(if self.is_nan() { $type::NAN.to_bits() } else { self.to_bits() })
            }
        }
    };
}

number!(f32, u32, 23, -126);
number!(f64, u64, 52, -1022);

/// The operands of a class: first, second and third ones.
pub(crate) fn operands<T: Number>(class: OperandClass) -> [Vec<T>; 3] {
    let mut random = Random(class as u64 + 1);
    let mut all = [(); 3].map(|()| Vec::with_capacity(COUNT));
    for _ in 0..COUNT {
        let triple = triple::<T>(class, &mut random);
        all.iter_mut().zip(triple).for_each(|(list, number)| list.push(number));
    }
    all
}

fn triple<T: Number>(class: OperandClass, random: &mut Random) -> [T; 3] {
    match class {
        OperandClass::Normal => [(); 3].map(|()| {
            let exponent = random.between(-8, 8);
            T::scaled(random, exponent)
        }),
        OperandClass::Cancelling => {
            let [a, b] = [(); 2].map(|()| {
                let exponent = random.between(-20, 20);
                T::scaled(random, exponent)
            });
            [a, b, T::minus_product(a, b)]
        }
        OperandClass::Subnormal => {
            let half = T::SMALLEST / 2;
            let [a, b] = [(); 2].map(|()| {
                let exponent = half + random.between(-10, 4);
                T::scaled(random, exponent)
            });
            // Zeros and the smallest numbers of both signs.
            let third = [0, 1, 6, 7][random.between(0, 3) as usize];
            [a, b, T::SPECIAL[third]]
        }
        OperandClass::Special => {
            [(); 3].map(|()| T::SPECIAL[random.between(0, T::SPECIAL.len() as i32 - 1) as usize])
        }
        OperandClass::AnyBits => [(); 3].map(|()| T::any(random)),
    }
}

/// Numbers that look random and are the same everywhere (splitmix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A number of a range with both its ends.
    fn between(&mut self, low: i32, high: i32) -> i32 {
        low + (self.next() % (high - low + 1) as u64) as i32
    }
}
