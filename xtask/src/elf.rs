//! What a binary needs to run: a dynamic linker and libraries, or nothing.

use std::fs;
use std::path::Path;

use crate::Failure;

/// The program header that names a dynamic linker (elf(5)).
const PT_INTERP: u32 = 3;
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
/// Entries of the dynamic section: a library's name, and the address of the names.
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;

/// What a dynamic binary or a library names.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Needs {
    pub(crate) interpreter: Option<String>,
    pub(crate) libraries: Vec<String>,
}

/// Fails unless the file is a 64-bit little-endian ELF binary without a dynamic linker.
pub(crate) fn check_static(path: &Path) -> Result<(), Failure> {
    let bytes = fs::read(path).map_err(|e| Failure::new(format!("{}: {e}", path.display())))?;
    match has_interpreter(&bytes) {
        Some(false) => Ok(()),
        Some(true) => Err(Failure::new(format!("{} asks for a dynamic linker", path.display()))),
        None => Err(Failure::new(format!("{} is not a 64-bit little-endian ELF binary", path.display()))),
    }
}

/// The architecture that a binary is for, in Go's words, which the OCI image specification uses.
pub(crate) fn architecture(elf: &[u8]) -> Option<&'static str> {
    match u16::from_le_bytes(array(elf, 0x12)?) {
        62 => Some("amd64"),
        183 => Some("arm64"),
        243 => Some("riscv64"),
        258 => Some("loong64"),
        _ => None,
    }
}

/// None for anything but a 64-bit little-endian ELF binary with a dynamic section.
pub(crate) fn needs(elf: &[u8]) -> Option<Needs> {
    let segments = segments(elf)?;
    let content = |kind: u32| {
        let found = segments.iter().find(|segment| segment.kind == kind)?;
        elf.get(found.offset..found.offset.checked_add(found.size)?)
    };
    let entry = |entry: &[u8]| Some((u64_at(entry, 0)?, u64_at(entry, 8)?));
    let entries: Vec<(u64, u64)> = content(PT_DYNAMIC)?.chunks_exact(16).filter_map(entry).collect();
    let (_, address) = entries.iter().find(|(tag, _)| *tag == DT_STRTAB)?;
    let names = segments.iter().filter(|segment| segment.kind == PT_LOAD).find_map(|segment| {
        let within = usize::try_from(address.checked_sub(segment.address)?).ok()?;
        (within < segment.size).then(|| elf.get(segment.offset + within..)).flatten()
    })?;
    let libraries = entries.iter().filter(|(tag, _)| *tag == DT_NEEDED);
    let libraries = libraries.filter_map(|(_, at)| text(names.get(usize::try_from(*at).ok()?..)?));
    Some(Needs { interpreter: content(PT_INTERP).and_then(text), libraries: libraries.collect() })
}

/// A text that ends with a zero.
fn text(bytes: &[u8]) -> Option<String> {
    bytes.split(|byte| *byte == 0).next().map(|text| String::from_utf8_lossy(text).into_owned())
}

/// A program header.
struct Segment {
    kind: u32,
    offset: usize,
    address: u64,
    size: usize,
}

fn segments(elf: &[u8]) -> Option<Vec<Segment>> {
    if elf.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let table = size_at(elf, 0x20)?;
    let entry_size = usize::from(u16::from_le_bytes(array(elf, 0x36)?));
    let entries = usize::from(u16::from_le_bytes(array(elf, 0x38)?));
    let segment = |i: usize| {
        let at = table.checked_add(i * entry_size)?;
        let kind = u32::from_le_bytes(array(elf, at)?);
        let offset = size_at(elf, at + 8)?;
        let address = u64_at(elf, at + 16)?;
        let size = size_at(elf, at + 32)?;
        Some(Segment { kind, offset, address, size })
    };
    (0..entries).map(segment).collect()
}

fn has_interpreter(elf: &[u8]) -> Option<bool> {
    Some(segments(elf)?.iter().any(|segment| segment.kind == PT_INTERP))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(array(bytes, at)?))
}

fn size_at(bytes: &[u8], at: usize) -> Option<usize> {
    usize::try_from(u64_at(bytes, at)?).ok()
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ELF header and one program header of this type.
    fn elf(kind: u32) -> Vec<u8> {
        let mut elf = vec![0; 0x40];
        elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
        elf[0x20] = 0x40;
        elf[0x36] = 56;
        elf[0x38] = 1;
        elf.extend(kind.to_le_bytes());
        elf.resize(0x40 + 56, 0);
        elf
    }

    #[test]
    fn an_interpreter_is_found() {
        assert_eq!(has_interpreter(&elf(PT_INTERP)), Some(true));
        assert_eq!(has_interpreter(&elf(1)), Some(false));
    }

    #[test]
    fn a_dynamic_program_names_its_linker_and_libraries() {
        let own = fs::read(std::env::current_exe().expect("this program")).expect("a file");
        let needs = needs(&own).expect("a dynamic section");
        assert!(needs.libraries.iter().any(|name| name.starts_with("libc.so")), "{needs:?}");
        assert!(needs.interpreter.expect("a linker").starts_with('/'));
    }

    #[test]
    fn what_is_no_elf_or_ends_early_is_neither() {
        assert_eq!(has_interpreter(b"#!/bin/sh\n"), None);
        assert_eq!(has_interpreter(&elf(1)[..0x42]), None);
        assert_eq!(needs(b"#!/bin/sh\n"), None);
        assert_eq!(needs(&elf(1)), None, "it has no dynamic section");
    }
}
