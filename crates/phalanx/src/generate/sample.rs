//! Draws the next token from a model's scores, in the order of transformers: repetition penalty, temperature, the `k`
//! likeliest, the smallest set with a probability of at least `p`.
//!
//! All arithmetic is in double precision over a fixed order, so a draw depends on scores and seed alone.

use super::GenerateError;

/// How tokens are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 takes the likeliest token every time; 1 draws from the model's distribution.
    pub temperature: f32,
    /// Only this number of likeliest tokens is drawn from; 0 for all.
    pub top_k: usize,
    /// Only the smallest set of likeliest tokens with at least this probability is drawn from; 1 for all.
    pub top_p: f32,
    /// Positive scores of tokens that occurred before are divided by this, negative ones multiplied; 1 for no penalty.
    pub repetition_penalty: f32,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling { temperature: 0.8, top_k: 0, top_p: 1.0, repetition_penalty: 1.0 }
    }
}

impl Sampling {
    /// The likeliest token every time.
    pub fn greedy() -> Sampling {
        Sampling { temperature: 0.0, ..Sampling::default() }
    }

    /// Refuses values outside their range.
    pub(super) fn check(&self) -> Result<(), GenerateError> {
        let wrong = |name, value, wanted| Err(GenerateError::Sampling { name, value, wanted });
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return wrong("temperature", self.temperature, "a number not below 0");
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return wrong("top-p", self.top_p, "above 0 and at most 1");
        }
        if !(self.repetition_penalty.is_finite() && self.repetition_penalty > 0.0) {
            return wrong(
                "repetition penalty",
                self.repetition_penalty,
                "a number above 0; 1 for no penalty",
            );
        }
        Ok(())
    }

    /// The token that `draw` in [0, 1) falls on, after the tokens `before`.
    pub(super) fn pick(&self, logits: &[f32], before: &[i64], draw: f32) -> i64 {
        let mut scores: Vec<f64> = logits.iter().map(|&logit| f64::from(logit)).collect();
        self.penalize(&mut scores, before);
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
        if self.temperature == 0.0 {
            return order.first().map_or(0, |&token| token as i64);
        }
        if self.top_k > 0 {
            order.truncate(self.top_k);
        }
        let highest = order.first().map_or(0.0, |&token| scores[token]);
        let weight = |token: usize| ((scores[token] - highest) / f64::from(self.temperature)).exp();
        let weights: Vec<f64> = order.iter().map(|&token| weight(token)).collect();
        let kept = self.nucleus(&weights);
        let mut left = f64::from(draw) * weights[..kept].iter().sum::<f64>();
        let fallen = weights[..kept].iter().position(|weight| {
            left -= weight;
            left < 0.0
        });
        order.get(fallen.unwrap_or(0)).map_or(0, |&token| token as i64)
    }

    fn penalize(&self, scores: &mut [f64], before: &[i64]) {
        let penalty = f64::from(self.repetition_penalty);
        if penalty == 1.0 {
            return;
        }
        let mut seen = vec![false; scores.len()];
        for token in before.iter().filter_map(|&token| usize::try_from(token).ok()) {
            if seen.get(token) == Some(&false) {
                seen[token] = true;
                scores[token] =
                    if scores[token] > 0.0 { scores[token] / penalty } else { scores[token] * penalty };
            }
        }
    }

    /// How many of the weights, which fall, it takes to reach the probability `top_p`; at least one.
    fn nucleus(&self, weights: &[f64]) -> usize {
        if self.top_p >= 1.0 {
            return weights.len();
        }
        let wanted = f64::from(self.top_p) * weights.iter().sum::<f64>();
        let mut sum = 0.0;
        let reached = weights.iter().position(|weight| {
            sum += weight;
            sum >= wanted
        });
        reached.map_or(weights.len(), |last| last + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tokens that draws spread over [0, 1) fall on, with how many of 1000 fall on each.
    fn shares(sampling: Sampling, logits: &[f32], before: &[i64]) -> Vec<(i64, usize)> {
        let mut counts = std::collections::BTreeMap::new();
        for draw in 0..1000 {
            *counts.entry(sampling.pick(logits, before, draw as f32 / 1000.0)).or_insert(0) += 1;
        }
        counts.into_iter().collect()
    }

    fn warm() -> Sampling {
        Sampling { temperature: 1.0, ..Sampling::default() }
    }

    #[test]
    fn greedy_takes_the_first_likeliest() {
        assert_eq!(Sampling::greedy().pick(&[0.0, 2.0, 2.0, 1.0], &[], 0.9), 1);
    }

    #[test]
    fn draws_follow_the_distribution() {
        let logits = [0.5f32, 0.2, 0.3].map(f32::ln);
        // A draw on the border between two tokens may fall on either.
        let near = |(token, count): (i64, usize)| count.abs_diff([500, 200, 300][token as usize]) <= 1;
        let shares = shares(warm(), &logits, &[]);
        assert!(shares.len() == 3 && shares.into_iter().all(near));
        assert_eq!(warm().pick(&[f32::NEG_INFINITY, 0.0], &[], 0.0), 1, "impossible tokens are never drawn");
    }

    #[test]
    fn a_lower_temperature_sharpens() {
        // Probabilities 0.8 and 0.2 at temperature 1; at 0.5 they are 0.64 and 0.04, scaled to a sum of 1.
        let half = Sampling { temperature: 0.5, ..warm() };
        let [(0, often), (1, rarely)] = shares(half, &[0.8f32, 0.2].map(f32::ln), &[])[..] else { panic!() };
        assert!((often as f64 - 1000.0 * 0.64 / 0.68).abs() < 2.0 && often + rarely == 1000);
    }

    #[test]
    fn top_k_and_top_p_cut_the_tail() {
        let logits = [0.1f32, 0.4, 0.3, 0.2].map(f32::ln);
        let tokens =
            |sampling| shares(sampling, &logits, &[]).iter().map(|(token, _)| *token).collect::<Vec<_>>();
        assert_eq!(tokens(Sampling { top_k: 2, ..warm() }), [1, 2]);
        assert_eq!(tokens(Sampling { top_p: 0.65, ..warm() }), [1, 2]);
        assert_eq!(tokens(Sampling { top_p: 0.75, ..warm() }), [1, 2, 3]);
        assert_eq!(tokens(Sampling { top_p: 0.01, ..warm() }), [1], "at least one remains");
        assert_eq!(tokens(Sampling { top_k: 9, ..warm() }), [0, 1, 2, 3]);
    }

    #[test]
    fn the_penalty_lowers_scores_of_either_sign_once() {
        let sampling = Sampling { repetition_penalty: 2.0, ..Sampling::greedy() };
        assert_eq!(sampling.pick(&[3.0, 2.0], &[0, 0, 0], 0.0), 1, "3 / 2 is below 2");
        assert_eq!(sampling.pick(&[5.0, 2.0], &[0, 0, 0], 0.0), 0, "5 / 2 is not, however often it occurred");
        assert_eq!(sampling.pick(&[-1.0, -1.5], &[0], 0.0), 1, "-1 x 2 is below -1.5");
    }

    #[test]
    fn values_outside_their_range_are_refused() {
        for (sampling, name) in [
            (Sampling { temperature: -1.0, ..warm() }, "temperature is -1"),
            (Sampling { temperature: f32::NAN, ..warm() }, "temperature is NaN"),
            (Sampling { top_p: 0.0, ..warm() }, "top-p is 0"),
            (Sampling { top_p: 1.5, ..warm() }, "top-p is 1.5"),
            (Sampling { repetition_penalty: 0.0, ..warm() }, "repetition penalty is 0"),
        ] {
            let error = sampling.check().unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
        warm().check().unwrap();
    }
}
