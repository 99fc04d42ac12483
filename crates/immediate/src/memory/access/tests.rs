use std::ops::Range;

use super::*;
use crate::instance::InstanceId;
use crate::memory::user::Footprint;
use crate::space::Rect;

fn user(actor: Actor, mode: AccessMode, footprint: Footprint) -> User {
    User { actor, mode, footprint }
}

fn copy(number: u32, mode: AccessMode, footprint: &Footprint) -> User {
    user(Actor::Copy(number), mode, footprint.clone())
}

fn bytes(span: Range<usize>) -> Footprint {
    Footprint { span, cells: None }
}

fn cells(span: Range<usize>, lo: [i64; 2], hi: [i64; 2]) -> Footprint {
    Footprint {
        span,
        cells: Some((InstanceId::new(0, 1), Rect::new(&lo, &hi).expect("two bounds of one rank"))),
    }
}

fn enter(access: &Access, user: &User) -> Result<usize, Refusal> {
    // SAFETY: tests keep their users until the end.
    unsafe { access.enter(user) }.map(|entered| entered.offset)
}

fn is_free(access: &Access) -> bool {
    access.occupant.load(Ordering::Relaxed) == FREE
}

#[test]
fn only_who_shares_bytes_with_a_writer_is_refused() {
    let access = Access::ready();
    let (left, right) = (cells(0..90, [0, 0], [9, 4]), cells(5..100, [0, 5], [9, 9]));
    let writers = [copy(1, AccessMode::Write, &left), copy(2, AccessMode::Write, &right)];
    writers.iter().for_each(|writer| assert_eq!(enter(&access, writer), Ok(0)));
    let all = user(Actor::Host, AccessMode::Read, bytes(0..100));
    let busy = Refusal::Busy { by: Actor::Copy(1), mode: AccessMode::Write };
    assert_eq!(enter(&access, &all), Err(busy));
    assert_eq!(access.leave(&writers[0]), Owed::Nothing);
    let readers = [copy(3, AccessMode::Read, &left), copy(4, AccessMode::Read, &left)];
    readers.iter().for_each(|reader| assert_eq!(enter(&access, reader), Ok(0)));
    for user in [&writers[1], &readers[0], &readers[1]] {
        assert!(!is_free(&access));
        assert_eq!(access.leave(user), Owed::Nothing);
    }
    assert!(is_free(&access), "once all have left");
}

#[test]
fn who_is_alone_never_needs_the_list() {
    let access = Access::ready();
    let writer = user(Actor::Host, AccessMode::Write, bytes(0..8));
    let list = lock(&access.list);
    for _ in 0..3 {
        assert_eq!(enter(&access, &writer), Ok(0));
        assert_eq!(access.leave(&writer), Owed::Nothing);
    }
    assert!(is_free(&access) && list.inside.is_empty());
}

#[test]
fn one_user_may_be_inside_twice() {
    let access = Access::ready();
    let reader = copy(1, AccessMode::Read, &bytes(0..8));
    assert_eq!([enter(&access, &reader), enter(&access, &reader)], [Ok(0), Ok(0)]);
    let writer = copy(2, AccessMode::Write, &bytes(0..8));
    let busy = Refusal::Busy { by: Actor::Copy(1), mode: AccessMode::Read };
    for _ in 0..2 {
        assert_eq!(enter(&access, &writer), Err(busy));
        assert_eq!(access.leave(&reader), Owed::Nothing);
    }
    assert_eq!(enter(&access, &writer), Ok(0));
    assert_eq!(access.leave(&writer), Owed::Nothing);
}

#[test]
fn reductions_take_turns_with_reductions_only() {
    let access = Access::ready();
    let reductions = [1, 2].map(|number| copy(number, AccessMode::Reduce, &bytes(0..8)));
    assert_eq!(enter(&access, &reductions[0]), Ok(0));
    assert_eq!(enter(&access, &reductions[1]), Err(Refusal::Turn));
    let busy = Refusal::Busy { by: Actor::Copy(1), mode: AccessMode::Reduce };
    assert_eq!(enter(&access, &copy(3, AccessMode::Write, &bytes(0..8))), Err(busy));
    assert_eq!(access.leave(&reductions[0]), Owed::Nothing);
}

#[test]
fn the_last_one_inside_gives_the_bytes_of_a_closed_instance_back() {
    for first_to_leave in [0, 1] {
        let access = Access::unready();
        let readers = [1, 2].map(|number| copy(number, AccessMode::Read, &bytes(0..8)));
        assert_eq!(enter(&access, &readers[0]), Err(Refusal::NotReady));
        access.open(64);
        readers.iter().for_each(|reader| assert_eq!(enter(&access, reader), Ok(64)));
        assert_eq!((access.close(), access.is_closed()), (Owed::Nothing, true));
        assert_eq!(enter(&access, &readers[0]), Err(Refusal::Released));
        assert_eq!(access.leave(&readers[first_to_leave]), Owed::Nothing);
        assert_eq!(access.leave(&readers[1 - first_to_leave]), Owed::Bytes);
    }
}

#[test]
fn one_alone_inside_gives_the_bytes_of_a_closed_instance_back() {
    let access = Access::ready();
    let reader = user(Actor::Host, AccessMode::Read, bytes(0..8));
    assert_eq!(enter(&access, &reader), Ok(0));
    assert_eq!((access.close(), access.leave(&reader)), (Owed::Nothing, Owed::Bytes));
    assert_eq!(Access::ready().close(), Owed::Bytes, "no user was inside");
}
