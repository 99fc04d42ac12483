//! Which span of a movement waited for which.
//!
//! A receiver has one arrow, from the sender on another device that was the last to finish: that one it waited for. An
//! arrow from every sender would draw the square of a collective's devices and say less.

use std::collections::BTreeMap;

use super::{SpanKind, Timeline};

/// A span of a timeline, by number of its lane and number in it.
pub(super) type Place = (usize, usize);

/// From a sender to a receiver that does not end before the sender starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrow {
    pub from: Place,
    pub to: Place,
}

/// All arrows of `timeline`, by movement and then by receiver.
pub(super) fn arrows(timeline: &Timeline) -> Vec<Arrow> {
    let mut sides: BTreeMap<u32, (Vec<Place>, Vec<Place>)> = BTreeMap::new();
    for (lane_idx, lane) in timeline.lanes.iter().enumerate() {
        for (span_idx, span) in lane.spans.iter().enumerate() {
            let Some(movement) = span.movement else { continue };
            let (senders, receivers) = sides.entry(movement).or_default();
            match span.kind {
                SpanKind::Send => senders.push((lane_idx, span_idx)),
                SpanKind::Receive => receivers.push((lane_idx, span_idx)),
                SpanKind::Compute | SpanKind::Wait => {}
            }
        }
    }
    let arrow = |senders: &[Place], to| last_sender(timeline, senders, to).map(|from| Arrow { from, to });
    sides
        .values()
        .flat_map(|(senders, receivers)| receivers.iter().filter_map(move |&to| arrow(senders, to)))
        .collect()
}

/// Of `senders`, the last to finish among those on other devices that start before `receiver` ends.
fn last_sender(timeline: &Timeline, senders: &[Place], receiver: Place) -> Option<Place> {
    let device = |place: Place| timeline.lanes[place.0].device;
    let span = |place: Place| &timeline.lanes[place.0].spans[place.1];
    let end = span(receiver).start.max(span(receiver).end);
    let candidates = senders.iter().copied();
    candidates
        .filter(|&sender| device(sender) != device(receiver) && span(sender).start <= end)
        .max_by_key(|&sender| span(sender).end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::{TimelineLane, TimelineLaneKind, TimelineSpan};

    fn lane(device: u32, spans: &[(SpanKind, u64, u64, u32)]) -> TimelineLane {
        let span = |&(kind, start, end, movement)| {
            let (name, layer) = (String::new(), String::new());
            TimelineSpan { name, layer, kind, start, end, bytes: 8, movement: Some(movement) }
        };
        let (kind, spans) = (TimelineLaneKind::Transfers, spans.iter().map(span).collect());
        TimelineLane { device, rank: None, kind, spans }
    }

    #[test]
    fn a_receiver_points_back_to_the_last_sender_of_another_device() {
        use SpanKind::{Receive, Send, Wait};
        let lanes = vec![
            lane(0, &[(Send, 0, 4, 7), (Receive, 9, 12, 7), (Wait, 4, 9, 7)]),
            lane(1, &[(Send, 0, 8, 7), (Receive, 9, 12, 7)]),
            // Sends after all have received, so no device waited for it; and takes part in nothing else.
            lane(2, &[(Send, 13, 20, 7), (Receive, 0, 5, 8)]),
        ];
        let timeline = Timeline { name: "measured".to_string(), lanes };
        let expected = [Arrow { from: (1, 0), to: (0, 1) }, Arrow { from: (0, 0), to: (1, 1) }];
        assert_eq!(arrows(&timeline), expected);
    }
}
