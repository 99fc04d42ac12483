//! Feed-forward parts of several experts, of which a router chooses some for each token. Written as
//! `COUNT,PER_TOKEN[,BALANCE]`.
//!
//! Every expert computes all tokens, and its result is multiplied by the share that the router gives it, which is zero
//! for most of them. All shapes are static and no token is dropped.

use std::fmt;
use std::str::FromStr;

use phalanx_nn::{Dense, F32, Net, Tensor};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Experts in the place of one feed-forward part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoutedExperts {
    /// How many there are.
    pub count: usize,
    /// How many of them a token goes through.
    pub per_token: usize,
    /// Factor of a loss that grows if some experts get more tokens than others; 0 for no such loss.
    pub balance: f32,
}

impl RoutedExperts {
    /// What values are, for messages.
    pub const FORM: &str =
        "COUNT,PER_TOKEN[,BALANCE] with PER_TOKEN from 1 to COUNT, such as 8,2 or 8,2,0.02";
}

impl fmt::Display for RoutedExperts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.count, self.per_token)?;
        if self.balance == 0.0 { Ok(()) } else { write!(f, ",{}", self.balance) }
    }
}

impl FromStr for RoutedExperts {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let parts: Vec<&str> = text.split(',').map(str::trim).collect();
        let size = |text: &str| text.parse::<usize>().map_err(drop);
        let (count, per_token, balance) = match parts[..] {
            [count, per_token] => (count, per_token, 0.0),
            [count, per_token, balance] => (count, per_token, balance.parse::<f32>().map_err(drop)?),
            _ => return Err(()),
        };
        let experts = RoutedExperts { count: size(count)?, per_token: size(per_token)?, balance };
        if experts.is_legal() { Ok(experts) } else { Err(()) }
    }
}

impl Serialize for RoutedExperts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for RoutedExperts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let wrong = || de::Error::custom(format!("experts `{text}` are unknown; use {}", Self::FORM));
        text.parse().map_err(|()| wrong())
    }
}

/// How the router of a block has dealt out the tokens.
pub(crate) struct Routing {
    /// The probability of every expert, `[batch, time, experts]`.
    probabilities: Tensor,
    /// 1 for the experts that a token goes through, else 0; likewise.
    assigned: Tensor,
}

impl RoutedExperts {
    pub(crate) fn is_legal(&self) -> bool {
        (1..=self.count).contains(&self.per_token) && self.balance >= 0.0 && self.balance.is_finite()
    }

    /// Adds router and experts; `expert` adds one of them at its place.
    pub(crate) fn feed_forward(
        &self,
        net: &Net,
        x: &Tensor,
        routings: &mut Vec<Routing>,
        expert: impl Fn(&Net) -> Tensor,
    ) -> Tensor {
        let logits = net.at("gate").linear(x, Dense::new(self.count).bias(false));
        let probabilities = logits.softmax().named(&net.at("probabilities"));
        let (top, chosen) = probabilities.top_k(self.per_token);
        let shares = (&top / top.sum_keep([2])).named(&net.at("shares"));
        let chosen = chosen.cast(F32).named(&net.at("chosen"));
        let (mut sum, mut assigned): (Option<Tensor>, Vec<Tensor>) = (None, Vec::new());
        for index in 0..self.count {
            let place = net.at("experts").at(index);
            // 1 where the expert is chosen: the numbers of experts are whole.
            let is_chosen = (1.0 - (&chosen - index as f32).abs()).relu().named(&place.at("is_chosen"));
            let share = (&is_chosen * &shares).sum_keep([2]).named(&place.at("share"));
            let weighted = (expert(&place) * share).named(&place);
            sum = Some(match sum {
                Some(sum) => (sum + weighted).named(&place.at("sum")),
                None => weighted,
            });
            if self.balance > 0.0 && net.training() {
                assigned.push(is_chosen.sum_keep([2]).named(&place.at("assigned")));
            }
        }
        if !assigned.is_empty() {
            let assigned = Tensor::concat(&assigned, 2).named(&net.at("assigned"));
            routings.push(Routing { probabilities, assigned });
        }
        sum.expect("there is at least one expert")
    }

    /// The loss that balances experts: how many there are, times the sum over them of the share of tokens that each gets and
    /// its mean probability, both over all blocks.
    pub(crate) fn balance_loss(&self, net: &Net, routings: &[Routing]) -> Option<Tensor> {
        let mean = |of: fn(&Routing) -> &Tensor| {
            let means = routings.iter().map(|routing| of(routing).mean([0, 1]));
            means.reduce(|sum, mean| sum + mean).map(|sum| sum / routings.len() as f32)
        };
        let assigned = mean(|routing| &routing.assigned)?.named(&net.at("assigned"));
        let probabilities = mean(|routing| &routing.probabilities)?.named(&net.at("probabilities"));
        Some(((assigned * probabilities).sum_all() * (self.balance * self.count as f32)).named(net))
    }
}
