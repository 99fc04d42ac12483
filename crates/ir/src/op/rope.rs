//! How the frequencies of rotary positions are changed for sequences longer than those a model was first trained on.
//!
//! Written as `linear:FACTOR`, `dynamic:FACTOR` or `llama3:FACTOR,LOW,HIGH,POSITIONS`, the numbers being those of
//! transformers; in the text of graphs with `/` in place of `:` and `,`.

use std::f64::consts::TAU;
use std::fmt;
use std::str::FromStr;

use crate::Attribute;
use crate::text::Attrs;

/// See the head of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum RopeScaling {
    /// Frequencies stay as they are.
    #[default]
    None,
    /// All frequencies are divided by a factor.
    Linear {
        /// The divisor.
        factor: f32,
    },
    /// Frequencies stay as they are: only sequences longer than the model's positions, which are not built, change them.
    Dynamic {
        /// By how much longer sequences are stretched.
        factor: f32,
    },
    /// As Llama 3.1 does: low frequencies are divided by a factor, high ones stay, between them the change is gradual.
    Llama3 {
        /// The divisor.
        factor: f32,
        /// Up to so many turns in the original window a frequency is low.
        low: f32,
        /// From so many turns in the original window on a frequency is high.
        high: f32,
        /// Positions of the original window.
        original: usize,
    },
}

impl RopeScaling {
    /// What values are, for messages.
    pub const FORMS: &str =
        "none, linear:FACTOR, dynamic:FACTOR or llama3:FACTOR,LOW,HIGH,POSITIONS with LOW below HIGH";

    /// What becomes of a frequency, in radians a position.
    pub fn scaled(self, frequency: f64) -> f64 {
        match self {
            RopeScaling::None | RopeScaling::Dynamic { .. } => frequency,
            RopeScaling::Linear { factor } => frequency / f64::from(factor),
            RopeScaling::Llama3 { factor, low, high, original } => {
                let [factor, low, high] = [factor, low, high].map(f64::from);
                let turns = original as f64 * frequency / TAU;
                let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                (1.0 - kept) * frequency / factor + kept * frequency
            }
        }
    }

    /// Whether frequencies stay as they are by definition.
    pub fn is_none(&self) -> bool {
        *self == RopeScaling::None
    }

    /// The value, if its numbers make sense.
    fn sound(self) -> Option<Self> {
        let is_sound = match self {
            RopeScaling::None => true,
            RopeScaling::Linear { factor } | RopeScaling::Dynamic { factor } => is_positive(factor),
            RopeScaling::Llama3 { factor, low, high, original } => {
                [factor, low, high].into_iter().all(is_positive) && low < high && original > 0
            }
        };
        is_sound.then_some(self)
    }
}

fn is_positive(number: f32) -> bool {
    number.is_finite() && number > 0.0
}

impl fmt::Display for RopeScaling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RopeScaling::None => f.write_str("none"),
            RopeScaling::Linear { factor } => write!(f, "linear:{factor}"),
            RopeScaling::Dynamic { factor } => write!(f, "dynamic:{factor}"),
            RopeScaling::Llama3 { factor, low, high, original } => {
                write!(f, "llama3:{factor},{low},{high},{original}")
            }
        }
    }
}

impl FromStr for RopeScaling {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let parts: Vec<&str> = text.split([':', ',', '/']).map(str::trim).collect();
        let number = |text: &str| text.parse::<f32>().map_err(drop);
        let count = |text: &str| text.parse::<usize>().map_err(drop);
        let scaling = match parts[..] {
            ["none"] => RopeScaling::None,
            ["linear", factor] => RopeScaling::Linear { factor: number(factor)? },
            ["dynamic", factor] => RopeScaling::Dynamic { factor: number(factor)? },
            ["llama3", factor, low, high, original] => RopeScaling::Llama3 {
                factor: number(factor)?,
                low: number(low)?,
                high: number(high)?,
                original: count(original)?,
            },
            _ => return Err(()),
        };
        scaling.sound().ok_or(())
    }
}

impl Attribute for RopeScaling {
    fn put(&self, key: &str, attrs: Attrs) -> Attrs {
        attrs.with(key, self.to_string().replace([':', ','], "/"))
    }

    fn take(key: &str, attrs: &mut Attrs) -> Result<Self, String> {
        attrs.take(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LLAMA: RopeScaling = RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 8192 };

    #[test]
    fn texts_read_as_themselves_and_nonsense_is_refused() {
        for text in ["none", "linear:2.5", "dynamic:2", "llama3:8,1,4,8192"] {
            let scaling: RopeScaling = text.parse().unwrap();
            assert_eq!(scaling.to_string(), text);
            let attrs = scaling.put("scaling", Attrs::new());
            assert_eq!(attrs.get::<RopeScaling>("scaling"), Ok(scaling), "{attrs}");
        }
        for text in ["", "yarn:2", "linear", "linear:0", "linear:nan", "llama3:8,4,1,8192", "llama3:8,1,4,0"]
        {
            assert_eq!(text.parse::<RopeScaling>(), Err(()), "{text}");
        }
    }

    /// Computed with `_compute_llama3_parameters` of transformers: base 500000, 64 features.
    #[test]
    fn low_frequencies_are_divided_high_ones_stay_and_between_them_the_change_is_gradual() {
        let frequency = |i: i32| LLAMA.scaled(500_000f64.powf(-2.0 * f64::from(i) / 64.0));
        let near = |i: i32, wanted: f64| {
            assert!((frequency(i) / wanted - 1.0).abs() < 1e-6, "{i}: {}", frequency(i));
        };
        WANTED.iter().for_each(|&(i, wanted)| near(i, wanted));
    }

    const WANTED: [(i32, f64); 6] = [
        (0, 1.0),
        (8, 0.037_606_030_702_590_94),
        (14, 0.003_211_446_106_433_868_4),
        (15, 0.001_371_893_682_517_111_3),
        (17, 0.000_178_507_791_133_597_5),
        (31, 3.767_322_596_104_35e-7),
    ];
}
