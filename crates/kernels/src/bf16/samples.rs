//! Numbers on which instructions are compared with the definition: ordinary ones, and all that may go wrong.

/// What kind of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberClass {
    /// Magnitudes around one.
    Normal,
    /// Many below the least normal number, which are read as zeros.
    Denormal,
    /// Sums overflow.
    Huge,
    /// Products underflow.
    Tiny,
    /// Many are infinite.
    Infinite,
    /// Many are no numbers.
    NotANumber,
    /// Most are zeros of either sign.
    Zero,
    /// Sums lie where rounding decides whether they underflow.
    Boundary,
    /// Sums cancel down to where they underflow.
    Cancellation,
}

impl NumberClass {
    /// Every class.
    pub const ALL: [NumberClass; 9] = [
        NumberClass::Normal,
        NumberClass::Denormal,
        NumberClass::Huge,
        NumberClass::Tiny,
        NumberClass::Infinite,
        NumberClass::NotANumber,
        NumberClass::Zero,
        NumberClass::Boundary,
        NumberClass::Cancellation,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            NumberClass::Normal => "normal",
            NumberClass::Denormal => "denormal",
            NumberClass::Huge => "huge",
            NumberClass::Tiny => "tiny",
            NumberClass::Infinite => "infinite",
            NumberClass::NotANumber => "not a number",
            NumberClass::Zero => "zeros of both signs",
            NumberClass::Boundary => "boundary of underflow",
            NumberClass::Cancellation => "cancellation",
        }
    }
}

/// Random numbers of one class.
pub(crate) struct Samples {
    class: NumberClass,
    state: u64,
}

impl Samples {
    /// The samples of `seed`.
    pub fn new(class: NumberClass, seed: u64) -> Samples {
        Samples { class, state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ class as u64 }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.state ^ self.state >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 16
    }

    /// A random sign and mantissa with an exponent in this range.
    fn number(&mut self, first: u64, last: u64) -> u32 {
        let (exponent, bits) = (first + self.next() % (last - first + 1), self.next() as u32);
        bits & 0x807f_ffff | (exponent as u32) << 23
    }

    /// A factor of a product, as `bf16`.
    pub fn factor(&mut self) -> u16 {
        let chance = self.next();
        let one_in = |n: u64| chance.is_multiple_of(n);
        let bits = match self.class {
            NumberClass::Normal => self.number(120, 133),
            NumberClass::Denormal if one_in(2) => self.number(0, 0),
            NumberClass::Denormal => self.number(1, 254),
            NumberClass::Huge => self.number(185, 192),
            NumberClass::Tiny => self.number(56, 76),
            NumberClass::Infinite if one_in(8) => self.number(255, 255) & 0xff80_0000,
            NumberClass::Infinite => self.number(100, 200),
            NumberClass::NotANumber if one_in(8) => self.number(255, 255) | 0x0001_0000,
            NumberClass::NotANumber => self.number(1, 254),
            NumberClass::Zero if !one_in(3) => self.number(0, 0) & 0x8000_0000,
            NumberClass::Zero => self.number(58, 66) & 0xffe0_0000,
            // 2⁻⁶³, whose square is the least normal number, and factors of products around 2⁻¹⁵¹.
            NumberClass::Boundary if one_in(2) => self.number(64, 64) & 0xff80_0000,
            NumberClass::Boundary => self.number(49, 55),
            NumberClass::Cancellation => self.number(62, 66) & 0xfffe_0000,
        };
        (bits >> 16) as u16
    }

    /// What products are added to.
    pub fn addend(&mut self) -> f32 {
        f32::from_bits(match self.class {
            NumberClass::Huge => self.number(250, 254),
            NumberClass::Tiny => self.number(1, 12),
            NumberClass::Zero => self.number(1, 4) & 0xffe0_0000,
            NumberClass::Boundary => self.number(0, 1) & 0xff80_0000,
            NumberClass::Cancellation => self.number(1, 2) & 0xfffe_0000,
            _ => u32::from(self.factor()) << 16 | self.next() as u32 & 0xffff,
        })
    }
}
