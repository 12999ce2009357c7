//! Checks that a binary is static.

use std::fs;
use std::path::Path;

use crate::Failure;

/// The program header that names a dynamic linker (elf(5)).
const PT_INTERP: u32 = 3;

/// Fails unless the file is a 64-bit little-endian ELF binary without a dynamic linker.
pub(crate) fn check_static(path: &Path) -> Result<(), Failure> {
    let bytes = fs::read(path).map_err(|e| Failure::new(format!("{}: {e}", path.display())))?;
    match has_interpreter(&bytes) {
        Some(false) => Ok(()),
        Some(true) => Err(Failure::new(format!("{} asks for a dynamic linker", path.display()))),
        None => Err(Failure::new(format!("{} is not a 64-bit little-endian ELF binary", path.display()))),
    }
}

fn has_interpreter(elf: &[u8]) -> Option<bool> {
    if elf.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let table = usize::try_from(u64::from_le_bytes(array(elf, 0x20)?)).ok()?;
    let entry_size = usize::from(u16::from_le_bytes(array(elf, 0x36)?));
    let entries = usize::from(u16::from_le_bytes(array(elf, 0x38)?));
    for i in 0..entries {
        let kind = u32::from_le_bytes(array(elf, table.checked_add(i * entry_size)?)?);
        if kind == PT_INTERP {
            return Some(true);
        }
    }
    Some(false)
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
    fn what_is_no_elf_or_ends_early_is_neither() {
        assert_eq!(has_interpreter(b"#!/bin/sh\n"), None);
        assert_eq!(has_interpreter(&elf(1)[..0x42]), None);
    }
}
