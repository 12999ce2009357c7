//! The fields of a header block (RFC 7541), as far as necessary to find a bad authority: the dynamic table
//! is kept as sizes, not as strings.

use std::collections::VecDeque;

use http::uri::Authority;

use crate::Malformed;
use crate::reader::{Reader, mask, write_integer};

const AUTHORITY: &[u8] = b":authority";
/// The index of the authority in the static table, where its value is empty.
const STATIC_AUTHORITY: usize = 1;
/// The number of entries in the static table; the indices of the dynamic table follow.
const STATIC_ENTRIES: usize = STATIC_NAME_LENGTHS.len();
/// The lengths of the names in the static table.
#[rustfmt::skip]
const STATIC_NAME_LENGTHS: [u8; 61] = [
    10, 7, 7, 5, 5, 7, 7, 7, 7, 7, 7, 7, 7, 7, 14, 15, 15, 13, 6, 27, 3, 5, 13, 13, 19, 16, 16, 14, 16, 13, 12, 6, 4, 4,
    6, 7, 4, 4, 8, 17, 13, 8, 19, 13, 4, 8, 12, 18, 19, 5, 7, 7, 11, 6, 10, 25, 17, 10, 4, 3, 16,
];
/// The size of an entry in addition to its name and value.
const OVERHEAD: usize = 32;
/// The size of the dynamic table that the server allows: the protocol's default, which the server does not
/// change.
const MAX_TABLE_SIZE: usize = 4096;
const INDEXED: u8 = 0x80;
const WITH_INDEXING: u8 = 0x40;
const SIZE_UPDATE: u8 = 0x20;

#[derive(Debug)]
struct Entry {
    name_length: usize,
    value_length: usize,
    /// Whether its name is `:authority`.
    authority: bool,
    /// Whether the server did not receive the entry.
    left_out: bool,
}

impl Entry {
    fn size(&self) -> usize {
        self.name_length + self.value_length + OVERHEAD
    }
}

/// The caller's dynamic table, the newest entry first.
#[derive(Debug)]
pub(super) struct Table {
    entries: VecDeque<Entry>,
    size: usize,
    most: usize,
    left_out: usize,
}

/// What to do with a field.
enum Verdict {
    Keep,
    LeaveOut,
    Write(Vec<u8>),
}

impl Table {
    pub(super) fn new() -> Self {
        Self { entries: VecDeque::new(), size: 0, most: MAX_TABLE_SIZE, left_out: 0 }
    }

    /// Whether the server's table numbers its entries in the same way as the caller's.
    pub(super) fn is_synchronised(&self) -> bool {
        self.left_out == 0
    }

    /// Reads a complete header block and returns its replacement, if it needs one.
    pub(super) fn repair(&mut self, block: &[u8]) -> Result<Option<Vec<u8>>, Malformed> {
        let mut repaired = Vec::new();
        let mut copied = 0;
        let mut changed = false;
        let mut reader = Reader { bytes: block, at: 0 };
        while let Some(first) = reader.peek() {
            let start = reader.at;
            let verdict = if first & INDEXED != 0 {
                self.indexed(reader.integer(7)?)?
            } else if first & WITH_INDEXING != 0 {
                self.literal(&mut reader, 6)?
            } else if first & SIZE_UPDATE != 0 {
                self.resize(reader.integer(5)?)?
            } else {
                self.literal(&mut reader, 4)?
            };
            let field = match verdict {
                Verdict::Keep => continue,
                Verdict::LeaveOut => Vec::new(),
                Verdict::Write(field) => field,
            };
            repaired.extend_from_slice(&block[copied..start]);
            repaired.extend_from_slice(&field);
            (copied, changed) = (reader.at, true);
        }
        repaired.extend_from_slice(if changed { &block[copied..] } else { &[] });
        Ok(changed.then_some(repaired))
    }

    fn indexed(&self, index: usize) -> Result<Verdict, Malformed> {
        if index == 0 {
            return Err(Malformed);
        }
        if index <= STATIC_ENTRIES {
            return Ok(if index == STATIC_AUTHORITY { Verdict::LeaveOut } else { Verdict::Keep });
        }
        if self.entry(index)?.left_out {
            return Ok(Verdict::LeaveOut);
        }
        let number = self.renumbered(index);
        if number == index {
            return Ok(Verdict::Keep);
        }
        let mut field = Vec::new();
        write_integer(&mut field, INDEXED, 7, number);
        Ok(Verdict::Write(field))
    }

    fn literal(&mut self, reader: &mut Reader<'_>, prefix: u8) -> Result<Verdict, Malformed> {
        let kind = reader.peek().unwrap_or(0) & !mask(prefix);
        let insert = kind == WITH_INDEXING;
        let index = reader.integer(prefix)?;
        let after_index = reader.at;
        let (name_length, authority, number) = match index {
            0 => {
                let name = reader.string()?;
                (name.length()?, name.is(AUTHORITY)?, 0)
            }
            1..=STATIC_ENTRIES => {
                (usize::from(STATIC_NAME_LENGTHS[index - 1]), index == STATIC_AUTHORITY, index)
            }
            _ => {
                let entry = self.entry(index)?;
                let number = if entry.left_out { STATIC_AUTHORITY } else { self.renumbered(index) };
                (entry.name_length, entry.authority, number)
            }
        };
        let before_value = reader.at;
        let value = reader.string()?;
        let repaired = if authority { repaired_authority(&value.plain()?) } else { Authorized::Fine };

        let mut field = Vec::new();
        let verdict = match repaired {
            Authorized::LeaveOut => Verdict::LeaveOut,
            Authorized::Fine if number == index => Verdict::Keep,
            fine_or_not => {
                write_integer(&mut field, kind, prefix, number);
                field.extend_from_slice(&reader.bytes[after_index..before_value]);
                match fine_or_not {
                    Authorized::Instead(value) => {
                        write_integer(&mut field, 0, 7, value.len());
                        field.extend_from_slice(&value);
                    }
                    _ => field.extend_from_slice(&reader.bytes[before_value..reader.at]),
                }
                Verdict::Write(field)
            }
        };
        if insert {
            let left_out = matches!(verdict, Verdict::LeaveOut);
            self.insert(Entry { name_length, value_length: value.length()?, authority, left_out });
        }
        Ok(verdict)
    }

    fn resize(&mut self, most: usize) -> Result<Verdict, Malformed> {
        if most > MAX_TABLE_SIZE {
            return Err(Malformed);
        }
        self.most = most;
        self.evict_down_to(most);
        Ok(Verdict::Keep)
    }

    fn entry(&self, index: usize) -> Result<&Entry, Malformed> {
        self.entries.get(index - STATIC_ENTRIES - 1).ok_or(Malformed)
    }

    /// The index of this entry of the dynamic table in the server's table.
    fn renumbered(&self, index: usize) -> usize {
        if self.left_out == 0 {
            return index;
        }
        let newer = self.entries.iter().take(index - STATIC_ENTRIES - 1);
        index - newer.filter(|entry| entry.left_out).count()
    }

    fn insert(&mut self, entry: Entry) {
        let size = entry.size();
        self.evict_down_to(self.most.saturating_sub(size));
        // An entry larger than the table empties the table, and is not kept.
        if size <= self.most {
            self.size += size;
            self.left_out += usize::from(entry.left_out);
            self.entries.push_front(entry);
        }
    }

    fn evict_down_to(&mut self, most: usize) {
        while self.size > most
            && let Some(oldest) = self.entries.pop_back()
        {
            self.size -= oldest.size();
            self.left_out -= usize::from(oldest.left_out);
        }
    }
}

/// What to do with an authority so that the server accepts it.
enum Authorized {
    Fine,
    LeaveOut,
    Instead(Vec<u8>),
}

fn repaired_authority(value: &[u8]) -> Authorized {
    if value.is_empty() {
        return Authorized::LeaveOut;
    }
    if Authority::try_from(value).is_ok() {
        return Authorized::Fine;
    }
    let plain = |byte: &u8| if byte.is_ascii_alphanumeric() || *byte == b'.' { *byte } else { b'-' };
    Authorized::Instead(value.iter().map(plain).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::property::STATIC_NAMES;

    /// A block that inserts a field of this name and size into the table.
    fn inserting(name: usize, size: usize) -> Vec<u8> {
        let mut block = Vec::new();
        write_integer(&mut block, WITH_INDEXING, 6, name);
        let length = size - OVERHEAD - STATIC_NAMES[name - 1].len();
        write_integer(&mut block, 0, 7, length);
        block.extend(std::iter::repeat_n(b'x', length));
        block
    }

    fn refers(table: &mut Table, index: u8) -> bool {
        table.repair(&[INDEXED | index]).is_ok()
    }

    #[test]
    fn the_table_evicts_to_the_byte() {
        for name in 1..=STATIC_ENTRIES {
            let mut table = Table::new();
            for _ in 0..3 {
                table.repair(&inserting(name, MAX_TABLE_SIZE / 2)).unwrap();
            }
            assert!(refers(&mut table, 63) && !refers(&mut table, 64), "{name}: room for two");
            table.repair(&inserting(name, MAX_TABLE_SIZE / 2 + 1)).unwrap();
            assert!(refers(&mut table, 62) && !refers(&mut table, 63), "{name}: and no byte more");
            table.repair(&inserting(name, MAX_TABLE_SIZE + 1)).unwrap();
            assert!(!refers(&mut table, 62), "{name}: what is too large empties it");
        }
    }

    #[test]
    fn a_smaller_table_evicts_at_once() {
        let mut table = Table::new();
        for _ in 0..4 {
            table.repair(&inserting(2, 100)).unwrap();
        }
        let mut block = Vec::new();
        write_integer(&mut block, SIZE_UPDATE, 5, 299);
        table.repair(&block).unwrap();
        assert!(refers(&mut table, 63) && !refers(&mut table, 64));
        block.clear();
        write_integer(&mut block, SIZE_UPDATE, 5, MAX_TABLE_SIZE + 1);
        assert_eq!(table.repair(&block), Err(Malformed));
    }

    #[test]
    fn an_authority_keeps_its_length_and_what_can_be_read_of_it() {
        let mut table = Table::new();
        let mut block = vec![0x41, 12];
        block.extend_from_slice(b"%2Frun/c_1.s");
        let mut due = vec![0x41, 12];
        due.extend_from_slice(b"-2Frun-c-1.s");
        assert_eq!(table.repair(&block), Ok(Some(due)));
        assert_eq!(table.repair(&[0x80 | 62]), Ok(None));
        assert!(table.is_synchronised());
        assert_eq!(table.repair(&[0x41, 0, 0x80 | 63]), Ok(Some(vec![0x80 | 62])));
        assert!(!table.is_synchronised());
    }
}
