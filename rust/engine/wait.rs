// SPDX-License-Identifier: GPL-2.0

//! How a thread waits that looks for completions itself, and its manners meanwhile. Pure: it is
//! tested on the host too.
//!
//! On a fast device it may find something whenever it looks, and would keep its CPU until the tick
//! takes it away, as kernels with lazy preemption do not take it earlier. So it gives way after
//! each find to whom the scheduler has chosen, and after each look in vain to whoever waits for
//! this CPU.

/// Looks between looks at what else a thread has to do.
const LOOKS: u32 = 256;

/// What a thread that waits for operations does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Look {
    /// Completions were handed on: see whether one's own are among them.
    Found,
    /// Nothing yet: look again, after others had the CPU.
    Again,
    /// Sleep until the lane says that something completed; the CQs are looked at by others.
    Sleep,
}

/// A thread that waits, and its CPU.
pub(crate) trait Waits {
    /// Something of its own ended, or may have. Says so once.
    fn told(&mut self) -> bool;

    /// Looks for completions.
    fn look(&mut self) -> Look;

    /// Gives the CPU up if the scheduler has chosen somebody else for it.
    fn give_way(&mut self);

    /// Lets all others that wait for the CPU go first.
    fn let_others(&mut self);

    /// Sleeps until it is told something, or for long.
    fn sleep(&mut self);
}

/// Waits until something of the thread's own ended, it slept, or for some looks. The CPU was offered
/// to others at least once.
#[inline]
pub(crate) fn wait(thread: &mut impl Waits) {
    // Another may find all that is this thread's, which then never looks.
    thread.give_way();
    for _ in 0..LOOKS {
        if thread.told() {
            return;
        }
        match thread.look() {
            Look::Found => thread.give_way(),
            Look::Again => thread.let_others(),
            Look::Sleep => return thread.sleep(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a thread did.
    #[derive(Default)]
    struct Thread {
        /// What it is told, and what it finds.
        told: bool,
        finds: Option<Look>,
        looks: u32,
        gave_way: u32,
        let_others: u32,
        slept: u32,
        /// Looks since others could have the CPU.
        greed: u32,
        greediest: u32,
    }

    impl Waits for Thread {
        fn told(&mut self) -> bool {
            self.told
        }

        fn look(&mut self) -> Look {
            self.looks += 1;
            self.greed += 1;
            self.greediest = self.greediest.max(self.greed);
            self.finds.unwrap_or(match self.looks % 3 {
                0 => Look::Again,
                _ => Look::Found,
            })
        }

        fn give_way(&mut self) {
            self.gave_way += 1;
            self.greed = 0;
        }

        fn let_others(&mut self) {
            self.let_others += 1;
            self.greed = 0;
        }

        fn sleep(&mut self) {
            self.slept += 1;
        }
    }

    fn waited(told: bool, finds: Option<Look>) -> Thread {
        let mut thread = Thread {
            told,
            finds,
            ..Thread::default()
        };
        for _ in 0..3 {
            wait(&mut thread);
        }
        thread
    }

    #[test]
    fn who_always_finds_gives_way_after_each() {
        let thread = waited(false, Some(Look::Found));
        assert_eq!((thread.looks, thread.let_others), (3 * LOOKS, 0));
        assert_eq!(thread.gave_way, 3 * (LOOKS + 1));
        assert_eq!((thread.greediest, thread.greed), (1, 0));
    }

    #[test]
    fn who_is_always_told_gives_way_each_time() {
        let thread = waited(true, Some(Look::Found));
        assert_eq!((thread.looks, thread.gave_way), (0, 3));
    }

    #[test]
    fn who_finds_nothing_lets_all_others_go_first() {
        let thread = waited(false, Some(Look::Again));
        assert_eq!((thread.looks, thread.let_others), (3 * LOOKS, 3 * LOOKS));
        let thread = waited(false, None);
        assert_eq!((thread.greediest, thread.greed), (1, 0));
    }

    #[test]
    fn who_sleeps_looks_no_more() {
        let thread = waited(false, Some(Look::Sleep));
        assert_eq!((thread.looks, thread.slept), (3, 3));
    }
}
