//! Which of the jobs that were claimed together are still open.

/// A set of positions. Up to 64 of them, the usual case of a job that is tried again, need no memory of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Bits {
    Few(u64),
    Many(Box<[u64]>),
}

impl Bits {
    /// The first `count` positions.
    pub(crate) fn first(count: u16) -> Self {
        let word = |left: u16| if left >= 64 { u64::MAX } else { (1 << left) - 1 };
        if count <= 64 {
            return Self::Few(word(count));
        }
        Self::Many((0..count.div_ceil(64)).map(|at| word(count - at * 64)).collect())
    }

    fn words(&self) -> &[u64] {
        match self {
            Self::Few(word) => std::slice::from_ref(word),
            Self::Many(words) => words,
        }
    }

    fn word_mut(&mut self, at: usize) -> Option<&mut u64> {
        match self {
            Self::Few(word) => Some(word).filter(|_| at == 0),
            Self::Many(words) => words.get_mut(at),
        }
    }

    pub(crate) fn contains(&self, position: u16) -> bool {
        self.words().get(usize::from(position / 64)).is_some_and(|word| word >> (position % 64) & 1 == 1)
    }

    /// Takes a position out; whether it was in.
    pub(crate) fn take(&mut self, position: u16) -> bool {
        let Some(word) = self.word_mut(usize::from(position / 64)) else { return false };
        let mask = 1 << (position % 64);
        let was_in = *word & mask != 0;
        *word &= !mask;
        was_in
    }

    pub(crate) fn count(&self) -> u16 {
        // Never more than were put in, which is a u16.
        u16::try_from(self.words().iter().map(|word| word.count_ones()).sum::<u32>()).unwrap_or(u16::MAX)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.words().iter().all(|word| *word == 0)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        (0u16..).zip(self.words()).flat_map(|(at, word)| {
            let mut left = *word;
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros();
                left &= left.wrapping_sub(1);
                u16::try_from(bit).ok().filter(|bit| *bit < 64).map(|bit| at * 64 + bit)
            })
        })
    }

    /// The bytes that hold `length` positions.
    pub(crate) fn put(&self, length: u16, bytes: &mut Vec<u8>) {
        let all = self.words().iter().flat_map(|word| word.to_le_bytes());
        bytes.extend(all.take(usize::from(length.div_ceil(8))));
    }

    /// Takes the bytes of `length` positions off the front; none if they are too few or name others.
    pub(crate) fn get(length: u16, bytes: &mut &[u8]) -> Option<Self> {
        let (mine, rest) = bytes.split_at_checked(usize::from(length.div_ceil(8)))?;
        *bytes = rest;
        let mut bits = Self::first(length);
        for at in 0..usize::from(length.div_ceil(64)) {
            let mut word = [0; 8];
            for (to, from) in word.iter_mut().zip(mine.iter().skip(at * 8)) {
                *to = *from;
            }
            let word = u64::from_le_bytes(word);
            let allowed = bits.word_mut(at)?;
            if word & !*allowed != 0 {
                return None;
            }
            *allowed = word;
        }
        Some(bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn bits_are_the_set_of_what_was_not_taken(length in 0u16..400, taken in proptest::collection::vec(0u16..420, 0..200)) {
            let mut bits = Bits::first(length);
            let mut set: BTreeSet<u16> = (0..length).collect();
            for position in taken {
                prop_assert_eq!(bits.take(position), set.remove(&position));
            }
            prop_assert_eq!(bits.iter().collect::<Vec<_>>(), set.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(usize::from(bits.count()), set.len());
            prop_assert_eq!(bits.is_empty(), set.is_empty());
            let mut bytes = Vec::new();
            bits.put(length, &mut bytes);
            let mut rest = bytes.as_slice();
            prop_assert_eq!(Bits::get(length, &mut rest), Some(bits));
            prop_assert!(rest.is_empty());
            prop_assert_eq!(Bits::get(length, &mut &bytes[..bytes.len().saturating_sub(1)]).is_none(), length > 0);
        }
    }

    #[test]
    fn positions_beyond_the_length_are_refused() {
        assert_eq!(Bits::get(3, &mut [0b1000u8].as_slice()), None);
        assert!(Bits::get(3, &mut [0b101u8].as_slice()).is_some());
    }
}
