// SPDX-License-Identifier: GPL-2.0

//! What can be written to an attribute: words, numbers, ranges. Pure: it is tested on the host too.

use core::fmt;

/// Makes an enum whose values have a name in configfs and a number on the wire.
macro_rules! choice {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $number:literal, $text:literal;)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) enum $name {
            $($(#[$vmeta])* $variant,)*
        }

        impl $name {
            /// The names, for messages.
            pub(crate) const ALLOWED: &'static str = concat!("one of", $(" ", $text,)*);

            /// Every value.
            #[cfg(test)]
            pub(crate) const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// From its name.
            pub(crate) fn parse(text: &str) -> Option<Self> {
                match text {
                    $($text => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// From its number on the wire.
            #[allow(dead_code)] // Not every choice travels.
            pub(crate) fn from_wire(number: u8) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// Its number on the wire.
            #[allow(dead_code)] // Not every choice travels.
            pub(crate) fn to_wire(self) -> u8 {
                match self {
                    $(Self::$variant => $number,)*
                }
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(match self {
                    $(Self::$variant => $text,)*
                })
            }
        }
    };
}

pub(crate) use choice;

/// An inclusive range of a number.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    /// Least.
    pub(crate) min: u64,
    /// Most.
    pub(crate) max: u64,
}

impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a number from {} to {}", self.min, self.max)
    }
}

/// Why a value is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// It is no value of that kind.
    Malformed,
    /// It is a number, but too small or too large.
    OutOfRange,
}

/// Takes the one newline that `echo` adds off, and gives the text; `None` for no text at all or
/// for bytes that are not printable ASCII.
pub(crate) fn text(page: &[u8]) -> Option<&str> {
    let bytes = page.strip_suffix(b"\n").unwrap_or(page);
    let printable = bytes.iter().all(|b| (0x20..0x7f).contains(b));
    if bytes.is_empty() || !printable {
        return None;
    }
    core::str::from_utf8(bytes).ok()
}

/// Parses a decimal number within bounds.
pub(crate) fn number(text: &str, bounds: Bounds) -> Result<u64, Refusal> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(Refusal::Malformed);
    }
    // Only digits: what does not parse is too large.
    let value: u64 = text.parse().map_err(|_| Refusal::OutOfRange)?;
    if (bounds.min..=bounds.max).contains(&value) {
        Ok(value)
    } else {
        Err(Refusal::OutOfRange)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_takes_one_newline_and_refuses_the_rest() {
        assert_eq!(text(b"abc\n"), Some("abc"));
        assert_eq!(text(b"abc"), Some("abc"));
        assert_eq!(text(b"\n"), None);
        assert_eq!(text(b""), None);
        assert_eq!(text(b"a\n\n"), None);
        assert_eq!(text(b"a\0"), None);
        assert_eq!(text(&[0xff, 0xfe]), None);
    }

    #[test]
    fn numbers() {
        let b = Bounds { min: 1, max: 100 };
        assert_eq!(number("1", b), Ok(1));
        assert_eq!(number("100", b), Ok(100));
        assert_eq!(number("0", b), Err(Refusal::OutOfRange));
        assert_eq!(number("101", b), Err(Refusal::OutOfRange));
        assert_eq!(
            number("99999999999999999999999", b),
            Err(Refusal::OutOfRange)
        );
        for bad in ["", "-1", "+1", "1 ", " 1", "0x1", "1e3", "abc", "१"] {
            assert_eq!(number(bad, b), Err(Refusal::Malformed), "{bad:?}");
        }
    }
}
