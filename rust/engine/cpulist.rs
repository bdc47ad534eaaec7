// SPDX-License-Identifier: GPL-2.0

//! A set of CPUs as Linux writes it: `0-3,8`. Pure: it is tested on the host too.

use crate::value::{number, Bounds, Refusal};
use core::fmt;

/// CPUs that a list can name: 0 up to one less.
pub(crate) const MAX_CPUS: u32 = 1024;

const WORDS: usize = MAX_CPUS as usize / 64;

/// What a CPU's number may be.
const CPU: Bounds = Bounds {
    min: 0,
    max: MAX_CPUS as u64 - 1,
};

/// A set of CPUs, of fixed size and without an allocation. Any context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CpuList {
    words: [u64; WORDS],
}

impl CpuList {
    /// No CPU.
    pub(crate) const EMPTY: Self = Self { words: [0; WORDS] };

    /// Parses numbers and ascending ranges of them, separated by commas. They may come in any
    /// order and overlap. Strides and the empty list are not taken.
    ///
    /// `Malformed` for what is no list, `OutOfRange` for a CPU from [`MAX_CPUS`] on.
    pub(crate) fn parse(text: &str) -> Result<Self, Refusal> {
        let mut list = Self::EMPTY;
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            // Both first: what is no number stays malformed whatever the other one is.
            let (first, last) = match (number(first, CPU), number(last, CPU)) {
                (Ok(first), Ok(last)) => (first as u32, last as u32),
                (Err(Refusal::Malformed), _) | (_, Err(Refusal::Malformed)) => {
                    return Err(Refusal::Malformed)
                }
                _ => return Err(Refusal::OutOfRange),
            };
            if first > last {
                return Err(Refusal::Malformed);
            }
            for cpu in first..=last {
                list.insert(cpu);
            }
        }
        Ok(list)
    }

    /// Adds a CPU; one from [`MAX_CPUS`] on is left out.
    pub(crate) fn insert(&mut self, cpu: u32) {
        if let Some(word) = self.words.get_mut(cpu as usize / 64) {
            *word |= 1 << (cpu % 64);
        }
    }

    /// Whether a CPU is in it.
    pub(crate) fn contains(&self, cpu: u32) -> bool {
        let word = self.words.get(cpu as usize / 64);
        word.is_some_and(|word| word >> (cpu % 64) & 1 != 0)
    }

    /// Whether no CPU is in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// The CPUs, ascending.
    pub(crate) fn iter(&self) -> Iter<'_> {
        Iter { list: self, at: 0 }
    }

    /// The first CPU from `from` on.
    fn next_from(&self, from: u32) -> Option<u32> {
        let at = from as usize / 64;
        let first = *self.words.get(at)? & (u64::MAX << (from % 64));
        let rest = self.words.get(at + 1..)?;
        core::iter::once(first)
            .chain(rest.iter().copied())
            .zip(at as u32..)
            .find(|(word, _)| *word != 0)
            .map(|(word, at)| at * 64 + word.trailing_zeros())
    }
}

/// The CPUs of a list, ascending.
pub(crate) struct Iter<'a> {
    list: &'a CpuList,
    at: u32,
}

impl Iterator for Iter<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let cpu = self.list.next_from(self.at)?;
        self.at = cpu + 1;
        Some(cpu)
    }
}

impl fmt::Display for CpuList {
    /// The shortest list that parses to the same set; nothing for the empty one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut comma = "";
        let mut from = 0;
        while let Some(first) = self.next_from(from) {
            let mut last = first;
            while self.contains(last + 1) {
                last += 1;
            }
            match last - first {
                0 => write!(f, "{comma}{first}")?,
                _ => write!(f, "{comma}{first}-{last}")?,
            }
            comma = ",";
            from = last + 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{collections::BTreeSet, string::String};

    /// xorshift.
    struct Random(u64);

    impl Random {
        fn below(&mut self, n: u32) -> u32 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 32) as u32 % n
        }
    }

    fn of(cpus: impl IntoIterator<Item = u32>) -> CpuList {
        let mut list = CpuList::EMPTY;
        cpus.into_iter().for_each(|cpu| list.insert(cpu));
        list
    }

    #[test]
    fn lists_that_parse() {
        for (text, cpus, shown) in [
            ("0", vec![0], "0"),
            ("0-3,8", vec![0, 1, 2, 3, 8], "0-3,8"),
            ("8,0-3", vec![0, 1, 2, 3, 8], "0-3,8"),
            ("5-5", vec![5], "5"),
            ("1,2,3", vec![1, 2, 3], "1-3"),
            ("2-4,3-6,3", vec![2, 3, 4, 5, 6], "2-6"),
            ("63,64", vec![63, 64], "63-64"),
            ("1023", vec![1023], "1023"),
            ("007", vec![7], "7"),
        ] {
            let list = CpuList::parse(text).unwrap();
            assert_eq!(list, of(cpus.iter().copied()), "{text}");
            assert_eq!(list.to_string(), shown);
            assert!(list.iter().eq(cpus.iter().copied()));
        }
        assert!(CpuList::parse("0-1023").unwrap().iter().eq(0..MAX_CPUS));
        assert_eq!(CpuList::parse("0-1023").unwrap().to_string(), "0-1023");
    }

    #[test]
    fn lists_that_do_not() {
        for text in [
            "", ",", "0,", ",0", "1,,2", "-", "1-", "-1", "3-1", "1-2-3", "0-3:2", " 0", "0 ",
            "0, 1", "a", "0x1", "all", "+1", "1;2", "a-2000", "2000-a",
        ] {
            assert_eq!(CpuList::parse(text), Err(Refusal::Malformed), "{text:?}");
        }
        for text in ["1024", "0-1024", "99999999999999999999999", "0,5000"] {
            assert_eq!(CpuList::parse(text), Err(Refusal::OutOfRange), "{text:?}");
        }
    }

    #[test]
    fn members() {
        let list = of([3, 63, 64, 1000]);
        assert_eq!(list.iter().collect::<Vec<_>>(), [3, 63, 64, 1000]);
        assert!(!list.contains(4) && !list.contains(1024) && !list.contains(u32::MAX));
        assert!(!list.is_empty());
        assert!(CpuList::EMPTY.is_empty());
        assert_eq!(CpuList::EMPTY.iter().next(), None);
        assert_eq!(CpuList::EMPTY.to_string(), "");
        assert!(of([1024, u32::MAX]).is_empty());
    }

    #[test]
    fn what_is_shown_parses_to_the_same() {
        let mut random = Random(0x1234_5678_9abc_def1);
        for round in 0..2000 {
            // Dense and sparse, at small and at large numbers.
            let most = [8, 64, 65, 200, MAX_CPUS][round % 5];
            let mut model = BTreeSet::new();
            for _ in 0..=random.below(most) {
                model.insert(random.below(most));
            }
            let list = of(model.iter().copied());
            assert!(list.iter().eq(model.iter().copied()));
            for cpu in 0..most {
                assert_eq!(list.contains(cpu), model.contains(&cpu));
            }
            let text = list.to_string();
            assert_eq!(CpuList::parse(&text), Ok(list), "{text}");
        }
    }

    #[test]
    fn any_text_is_taken_or_refused() {
        let mut random = Random(42);
        for _ in 0..20000 {
            let text: String = (0..random.below(12))
                .map(|_| char::from(b"0123456789-,"[random.below(12) as usize]))
                .collect();
            if let Ok(list) = CpuList::parse(&text) {
                assert_eq!(CpuList::parse(&list.to_string()), Ok(list), "{text}");
            }
        }
    }
}
