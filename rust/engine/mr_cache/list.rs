// SPDX-License-Identifier: GPL-2.0

//! Doubly linked lists of slot numbers. All lists of a cache share one array of links, as a slot is
//! in one of them at most.

/// No slot.
pub(super) const NONE: u32 = u32::MAX;

/// The neighbours of a slot in its list.
#[derive(Clone, Copy)]
pub(super) struct Links {
    prev: u32,
    next: u32,
}

impl Links {
    /// Of a slot that is in no list.
    pub(super) const fn new() -> Self {
        Self {
            prev: NONE,
            next: NONE,
        }
    }
}

/// A list. Each operation takes a fixed number of steps.
pub(super) struct List {
    head: u32,
    tail: u32,
    len: u32,
}

impl List {
    /// An empty one.
    pub(super) const fn new() -> Self {
        Self {
            head: NONE,
            tail: NONE,
            len: 0,
        }
    }

    /// Slots in it.
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// Adds `slot`, which is in no list, at the end.
    pub(super) fn push_back(&mut self, links: &mut [Links], slot: u32) {
        links[slot as usize] = Links {
            prev: self.tail,
            next: NONE,
        };
        match self.tail {
            NONE => self.head = slot,
            tail => links[tail as usize].next = slot,
        }
        self.tail = slot;
        self.len += 1;
    }

    /// Adds `slot`, which is in no list, at the front.
    pub(super) fn push_front(&mut self, links: &mut [Links], slot: u32) {
        links[slot as usize] = Links {
            prev: NONE,
            next: self.head,
        };
        match self.head {
            NONE => self.tail = slot,
            head => links[head as usize].prev = slot,
        }
        self.head = slot;
        self.len += 1;
    }

    /// Takes the first one out.
    pub(super) fn pop_front(&mut self, links: &mut [Links]) -> Option<u32> {
        match self.head {
            NONE => None,
            slot => {
                self.remove(links, slot);
                Some(slot)
            }
        }
    }

    /// Takes `slot` out, which is in this list.
    pub(super) fn remove(&mut self, links: &mut [Links], slot: u32) {
        let Links { prev, next } = links[slot as usize];
        match prev {
            NONE => self.head = next,
            prev => links[prev as usize].next = next,
        }
        match next {
            NONE => self.tail = prev,
            next => links[next as usize].prev = prev,
        }
        links[slot as usize] = Links::new();
        self.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forward(list: &List, links: &[Links]) -> Vec<u32> {
        let mut out = vec![];
        let mut at = list.head;
        while at != NONE {
            out.push(at);
            at = links[at as usize].next;
        }
        out
    }

    fn backward(list: &List, links: &[Links]) -> Vec<u32> {
        let mut out = vec![];
        let mut at = list.tail;
        while at != NONE {
            out.push(at);
            at = links[at as usize].prev;
        }
        out.reverse();
        out
    }

    #[test]
    fn against_a_vector() {
        let mut links = [Links::new(); 12];
        let mut lists = [List::new(), List::new()];
        let mut model = [vec![], vec![]];
        let mut x = 99u64;
        for _ in 0..20_000 {
            x = x
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let which = (x >> 33) as usize % 2;
            let slot = (x >> 40) as u32 % 12;
            let inside = (0..2).find(|&i| model[i].contains(&slot));
            match (inside, (x >> 50) % 3) {
                (Some(i), 0) => {
                    lists[i].remove(&mut links, slot);
                    model[i].retain(|&s| s != slot);
                }
                (None, 0 | 1) => {
                    lists[which].push_back(&mut links, slot);
                    model[which].push(slot);
                }
                (None, _) => {
                    lists[which].push_front(&mut links, slot);
                    model[which].insert(0, slot);
                }
                (Some(_), _) => {
                    let first = (!model[which].is_empty()).then(|| model[which].remove(0));
                    assert_eq!(lists[which].pop_front(&mut links), first);
                }
            }
            for i in 0..2 {
                assert_eq!(forward(&lists[i], &links), model[i]);
                assert_eq!(backward(&lists[i], &links), model[i]);
                assert_eq!(lists[i].len() as usize, model[i].len());
            }
        }
    }
}
