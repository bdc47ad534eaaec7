// SPDX-License-Identifier: GPL-2.0

//! Which of a poller's CQs is looked at first, so that none is left out for ever.
//!
//! A turn takes up to a budget of completions. A CQ that always has as many as that would use the
//! whole of each turn; so the turn that follows begins with the CQ behind the one that used up the
//! budget, and each of N CQs is looked at within N turns.

/// Where the next turn begins.
pub(crate) struct Rota {
    first: usize,
}

impl Rota {
    /// With the first CQ.
    pub(crate) const fn new() -> Self {
        Self { first: 0 }
    }

    /// Takes up to `budget` completions out of `cqs`, `chunk` at a time, and returns how many came;
    /// fewer mean that all were empty. `poll` takes up to so many out of a CQ and says how many; fewer
    /// than it may take mean that this CQ is empty.
    pub(crate) fn sweep<C>(
        &mut self,
        cqs: &[C],
        budget: u32,
        chunk: u32,
        mut poll: impl FnMut(&C, u32) -> u32,
    ) -> u32 {
        let begin = match self.first < cqs.len() {
            true => self.first,
            false => 0,
        };
        let mut left = budget;
        for at in (begin..cqs.len()).chain(0..begin) {
            loop {
                let room = chunk.min(left);
                let n = poll(&cqs[at], room).min(room);
                left -= n;
                if left == 0 {
                    self.first = at + 1;
                    return budget;
                }
                if n < room {
                    break;
                }
            }
        }
        budget - left
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;

    fn take(cq: &Cell<u32>, room: u32) -> u32 {
        let n = cq.get().min(room);
        cq.set(cq.get() - n);
        n
    }

    #[test]
    fn everything_is_found() {
        let cqs = [Cell::new(3), Cell::new(0), Cell::new(70), Cell::new(1)];
        let mut rota = Rota::new();
        assert_eq!(rota.sweep(&cqs, 100, 32, take), 74);
        assert!(cqs.iter().all(|cq| cq.get() == 0));
        assert_eq!(rota.sweep(&cqs, 100, 32, take), 0);
        assert_eq!(rota.sweep::<Cell<u32>>(&[], 100, 32, take), 0);
    }

    #[test]
    fn no_more_than_the_budget() {
        let cqs = [Cell::new(10), Cell::new(10)];
        let mut rota = Rota::new();
        for (budget, left) in [(1, 19), (5, 14), (9, 5), (100, 0)] {
            rota.sweep(&cqs, budget, 4, |cq, room| {
                assert!(room > 0 && room <= 4);
                take(cq, room)
            });
            assert_eq!(cqs[0].get() + cqs[1].get(), left);
        }
    }

    /// CQs that never run empty, whatever the budget and the chunk.
    #[test]
    fn none_is_left_out() {
        for (budget, chunk) in [(1, 32), (32, 32), (33, 32), (100, 1)] {
            let cqs = [0usize, 1, 2, 3, 4];
            let seen: [Cell<u32>; 5] = Default::default();
            let mut rota = Rota::new();
            for turn in 1..=50 {
                rota.sweep(&cqs, budget, chunk, |cq, room| {
                    seen[*cq].set(turn);
                    room
                });
                if turn >= 5 {
                    assert!(seen.iter().all(|last| turn - last.get() < 5));
                }
            }
        }
    }

    /// One that is full does not keep a turn from the others' few.
    #[test]
    fn a_full_one_and_the_rest() {
        let cqs = [Cell::new(u32::MAX), Cell::new(0), Cell::new(0)];
        let mut rota = Rota::new();
        for _ in 0..100 {
            cqs[1].set(2);
            cqs[2].set(2);
            rota.sweep(&cqs, 8, 4, take);
            rota.sweep(&cqs, 8, 4, take);
            assert_eq!((cqs[1].get(), cqs[2].get()), (0, 0));
        }
    }

    #[test]
    fn fewer_cqs_than_before() {
        let mut rota = Rota::new();
        let many = [Cell::new(0), Cell::new(0), Cell::new(50)];
        assert_eq!(rota.sweep(&many, 50, 32, take), 50);
        let one = [Cell::new(7)];
        assert_eq!(rota.sweep(&one, 50, 32, take), 7);
    }
}
