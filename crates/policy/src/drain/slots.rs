//! Who gets a write slot of a target: the drain, or a writer that bypasses the buffer. Both take turns for the last one.

use crate::share::Tick;

/// The last slot is reserved this long for the side whose turn it is.
pub const TURN_TIMEOUT: Tick = Tick::ms(50);

/// The two users of a target's write slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The drain.
    Drain,
    /// Writers that bypass the buffer.
    Direct,
}

/// The write slots of one target.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct WriteSlots {
    writers: u32,
    /// The side whose turn the last slot is, because the other side took it while this one waited, and since when the
    /// other side has been kept from it.
    turn: Option<(Side, Option<Tick>)>,
}

impl WriteSlots {
    /// The slots in use.
    #[must_use]
    pub fn writers(&self) -> u32 {
        self.writers
    }

    /// Whether one side may begin another write at a target with `streams` slots. Both sides take turns for the last
    /// slot.
    pub fn may_begin(&mut self, side: Side, streams: u32, now: Tick) -> bool {
        if self.writers + 1 != streams {
            return self.writers < streams;
        }
        match &mut self.turn {
            Some((turn, since)) if *turn != side => now.since(*since.get_or_insert(now)) >= TURN_TIMEOUT,
            _ => true,
        }
    }

    /// One side begins to write. If it takes the last slot while the other side waits, it is the other side's turn
    /// next.
    pub fn begin(&mut self, side: Side, streams: u32, other_waits: bool) {
        self.writers += 1;
        if self.writers >= streams {
            let other = if side == Side::Drain { Side::Direct } else { Side::Drain };
            self.turn = other_waits.then_some((other, None));
        }
    }

    /// A write has ended.
    pub fn end(&mut self) {
        self.writers = self.writers.saturating_sub(1);
    }

    /// One side waits for a slot: the last one is its turn, if it is not the other side's.
    pub fn wait(&mut self, side: Side) {
        self.turn.get_or_insert((side, None));
    }

    /// One side no longer waits: it gives up its turn.
    pub fn leave(&mut self, side: Side) {
        if self.turn.is_some_and(|(turn, _)| turn == side) {
            self.turn = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_take_turns_for_the_last_slot() {
        let (drain, direct) = (Side::Drain, Side::Direct);
        // (slots, writes that began and whether the other side waited, side that asks, milliseconds that it is kept
        // from the slot, whether it may begin)
        type Began<'a> = &'a [(Side, bool)];
        let table: [(u32, Began<'_>, Side, u64, bool); 8] = [
            (1, &[], drain, 0, true),
            (1, &[], direct, 0, true),
            (1, &[(drain, false)], drain, 0, true),
            (1, &[(drain, true)], drain, 0, false),
            (1, &[(drain, true)], drain, 49, false),
            (1, &[(drain, true)], drain, 50, true),
            (1, &[(drain, true)], direct, 0, true),
            (2, &[(drain, true)], drain, 0, true),
        ];
        for (number, (streams, began, side, kept, may)) in table.into_iter().enumerate() {
            let mut slots = WriteSlots::default();
            for (side, other_waits) in began {
                slots.begin(*side, streams, *other_waits);
            }
            if slots.writers() >= streams {
                assert!(!slots.may_begin(side, streams, Tick(0)), "case {number}: all slots are in use");
                slots.end();
            }
            let _ = slots.may_begin(side, streams, Tick(0));
            assert_eq!(slots.may_begin(side, streams, Tick::ms(kept)), may, "case {number}");
        }
    }

    #[test]
    fn turn_ends_when_its_side_no_longer_waits() {
        let mut slots = WriteSlots::default();
        slots.wait(Side::Direct);
        assert!(!slots.may_begin(Side::Drain, 1, Tick(0)));
        slots.leave(Side::Drain);
        assert!(!slots.may_begin(Side::Drain, 1, Tick(0)));
        slots.leave(Side::Direct);
        assert!(slots.may_begin(Side::Drain, 1, Tick(0)));
    }
}
