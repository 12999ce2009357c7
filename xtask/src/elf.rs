//! What a binary needs to run: a dynamic linker and libraries, or nothing.

use std::fs;
use std::path::Path;

use object::LittleEndian;
use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader as _, ProgramHeader as _};

use crate::Failure;

/// What a dynamic binary or a library names.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Needs {
    pub(crate) interpreter: Option<String>,
    pub(crate) libraries: Vec<String>,
}

/// Fails unless the file is a 64-bit little-endian ELF binary without a dynamic linker.
pub(crate) fn check_static(path: &Path) -> Result<(), Failure> {
    let bytes = fs::read(path).map_err(|e| Failure::new(format!("{}: {e}", path.display())))?;
    match interpreter(&bytes) {
        Some(None) => Ok(()),
        Some(Some(_)) => Err(Failure::new(format!("{} asks for a dynamic linker", path.display()))),
        None => Err(Failure::new(format!("{} is not a 64-bit little-endian ELF binary", path.display()))),
    }
}

/// The architecture that a binary is for, in Go's words, which the OCI image specification uses.
pub(crate) fn architecture(bytes: &[u8]) -> Option<&'static str> {
    match header(bytes)?.e_machine(LittleEndian) {
        elf::EM_X86_64 => Some("amd64"),
        elf::EM_AARCH64 => Some("arm64"),
        elf::EM_RISCV => Some("riscv64"),
        elf::EM_LOONGARCH => Some("loong64"),
        _ => None,
    }
}

/// None for anything but a 64-bit little-endian ELF binary with a dynamic section.
pub(crate) fn needs(bytes: &[u8]) -> Option<Needs> {
    let sections = header(bytes)?.sections(LittleEndian, bytes).ok()?;
    let dynamic = sections.dynamic_table(LittleEndian, bytes).ok().filter(|found| !found.is_empty())?;
    let needed = dynamic.iter().filter(|entry| entry.tag == elf::DT_NEEDED);
    let libraries = needed.filter_map(|entry| dynamic.string(entry).ok()).map(text).collect();
    Some(Needs { interpreter: interpreter(bytes)?.map(text), libraries })
}

fn header(bytes: &[u8]) -> Option<&FileHeader64<LittleEndian>> {
    FileHeader64::parse(bytes).ok().filter(|header| header.is_little_endian())
}

/// The dynamic linker that a 64-bit little-endian ELF binary names, if it names one.
fn interpreter(bytes: &[u8]) -> Option<Option<&[u8]>> {
    let segments = header(bytes)?.program_headers(LittleEndian, bytes).ok()?;
    let mut named = segments.iter().map(|segment| segment.interpreter(LittleEndian, bytes));
    named.find_map(Result::transpose).transpose().ok()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ELF header and one program header of this type, for an empty text in the header.
    fn elf(kind: u32) -> Vec<u8> {
        let mut elf = vec![0; 0x40];
        elf[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        elf[0x20] = 0x40;
        elf[0x36] = 56;
        elf[0x38] = 1;
        elf.extend(kind.to_le_bytes());
        elf.resize(0x40 + 56, 0);
        elf[0x40 + 8] = 8;
        elf[0x40 + 32] = 1;
        elf
    }

    #[test]
    fn an_interpreter_is_found() {
        assert_eq!(interpreter(&elf(elf::PT_INTERP)), Some(Some(&b""[..])));
        assert_eq!(interpreter(&elf(elf::PT_LOAD)), Some(None));
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
        assert_eq!(interpreter(b"#!/bin/sh\n"), None);
        assert_eq!(interpreter(&elf(elf::PT_LOAD)[..0x42]), None);
        assert_eq!(needs(b"#!/bin/sh\n"), None);
        assert_eq!(needs(&elf(elf::PT_LOAD)), None, "it has no dynamic section");
    }
}
