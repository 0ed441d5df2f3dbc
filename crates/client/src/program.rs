//! The kind of an executable: whether a preloaded library can intercept its calls. Pure.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Number of bytes at the start of a file that determine its kind.
pub const PROGRAM_HEAD: usize = 8192;

/// A kind of program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ProgramKind {
    /// Dynamically linked, with the loader of the GNU C library.
    Dynamic,
    /// Statically linked.
    Static,
    /// Dynamically linked, but makes its calls on stacks too small for interception.
    Go,
    /// Dynamically linked, with another loader.
    OtherLoader(PathBuf),
    /// For another machine architecture.
    OtherMachine,
    /// A script of this interpreter.
    Script(PathBuf),
    /// None of these; the kernel or a shell decides.
    Unknown,
}

const LOAD_INTERPRETER: u32 = 3;
const NOTE: u32 = 4;
const GO_BUILD_ID: u32 = 4;
const SEGMENT: usize = 56;
const MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };

/// The kind of a program from the first [`PROGRAM_HEAD`] bytes of its file, or all of them.
#[must_use]
pub fn program_kind(head: &[u8]) -> ProgramKind {
    if let Some(line) = head.strip_prefix(b"#!") {
        let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let mut words = line.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty());
        return words
            .next()
            .map_or(ProgramKind::Unknown, |word| ProgramKind::Script(OsStr::from_bytes(word).into()));
    }
    if !head.starts_with(b"\x7fELF") {
        return ProgramKind::Unknown;
    }
    binary(head).unwrap_or(ProgramKind::Unknown)
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<usize> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?) as usize)
}

fn binary(head: &[u8]) -> Option<ProgramKind> {
    // 64-bit, little-endian, of this machine's architecture.
    if head.get(4..6)? != [2, 1] || half(head, 18)? != MACHINE || usize::from(half(head, 54)?) != SEGMENT {
        return Some(ProgramKind::OtherMachine);
    }
    let (first, count) = (long(head, 32)?, half(head, 56)?);
    let (mut loader, mut go) = (None, false);
    for at in 0..usize::from(count) {
        let header = first.checked_add(at * SEGMENT)?;
        let (offset, len) = (long(head, header + 8)?, long(head, header + 32)?);
        let bytes = head.get(offset..offset.checked_add(len)?);
        match word(head, header)? {
            // A path beyond the known bytes is assumed to be the GNU loader.
            LOAD_INTERPRETER => loader = Some(bytes.unwrap_or(b"/lib/ld-linux.so\0")),
            NOTE => go |= bytes.is_some_and(is_go),
            _ => {}
        }
    }
    let Some(loader) = loader else { return Some(ProgramKind::Static) };
    let loader = loader.split(|byte| *byte == 0).next().unwrap_or_default();
    let path = Path::new(OsStr::from_bytes(loader));
    let usual = path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"ld-linux"));
    Some(match (usual, go) {
        (false, _) => ProgramKind::OtherLoader(path.into()),
        (true, true) => ProgramKind::Go,
        (true, false) => ProgramKind::Dynamic,
    })
}

/// Whether a word of a command line names a prefix or a path below it, as in `--out=/fb/x`.
#[must_use]
pub fn names_prefix(word: &[u8], prefix: &[u8]) -> bool {
    let in_name =
        |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(byte));
    let found = |at: &usize| word[*at..].starts_with(prefix);
    let apart = |at: usize| !in_name(word[..at].last()) && !in_name(word.get(at + prefix.len()));
    (0..word.len()).filter(found).any(apart)
}

/// An ELF note.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ElfNote<'a> {
    /// The owner's name.
    pub owner: &'a [u8],
    /// The type, defined by the owner.
    pub kind: u32,
    /// The descriptor bytes.
    pub text: &'a [u8],
}

impl ElfNote<'_> {
    /// Whether Go's linker created it.
    #[must_use]
    pub fn is_of_go(&self) -> bool {
        self.kind == GO_BUILD_ID && self.owner == b"Go"
    }
}

/// Iterates over the notes of a note segment.
pub fn elf_notes(mut segment: &[u8]) -> impl Iterator<Item = ElfNote<'_>> {
    std::iter::from_fn(move || {
        let (owner, len, kind) = (word(segment, 0)? as usize, word(segment, 4)? as usize, word(segment, 8)?);
        let start = 12_usize.checked_add(owner.next_multiple_of(4))?;
        let text = segment.get(start..start.checked_add(len)?)?;
        let owner = segment.get(12..12 + owner)?.split(|byte| *byte == 0).next()?;
        let rest = start.checked_add(len.next_multiple_of(4))?;
        segment = segment.get(rest..).unwrap_or_default();
        Some(ElfNote { owner, kind, text })
    })
}

fn is_go(segment: &[u8]) -> bool {
    elf_notes(segment).any(|note| note.is_of_go())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ELF file with these segments: types and contents.
    fn file(machine: u16, segments: &[(u32, &[u8])]) -> Vec<u8> {
        let mut file = vec![0; 64];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[18..20].copy_from_slice(&machine.to_le_bytes());
        file[32..40].copy_from_slice(&64_u64.to_le_bytes());
        file[54..56].copy_from_slice(&56_u16.to_le_bytes());
        file[56..58].copy_from_slice(&(segments.len() as u16).to_le_bytes());
        let mut offset = 64 + 56 * segments.len();
        for (kind, bytes) in segments {
            let mut header = [0; 56];
            header[..4].copy_from_slice(&kind.to_le_bytes());
            header[8..16].copy_from_slice(&(offset as u64).to_le_bytes());
            header[32..40].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
            file.extend_from_slice(&header);
            offset += bytes.len();
        }
        segments.iter().for_each(|(_, bytes)| file.extend_from_slice(bytes));
        file
    }

    #[test]
    fn command_words_that_name_the_prefix_are_found() {
        for (word, expected) in [
            ("/fb", true),
            ("/fb/x", true),
            ("--out=/fb/x", true),
            ("host:/fb", true),
            ("file:///fb/x", true),
            ("/tmp/fbpl/x", false),
            ("/fb2/x", false),
            ("/home/fb/x", false),
            ("/tmp/fbpl:/fb/x", true),
            ("fb", false),
            ("", false),
        ] {
            assert_eq!(names_prefix(word.as_bytes(), b"/fb"), expected, "{word}");
        }
    }

    #[test]
    fn program_kinds_are_recognized() {
        let gnu: (u32, &[u8]) = (LOAD_INTERPRETER, b"/lib64/ld-linux-x86-64.so.2\0");
        let musl: (u32, &[u8]) = (LOAD_INTERPRETER, b"/lib/ld-musl-x86_64.so.1\0");
        let go: (u32, &[u8]) = (NOTE, b"\x04\0\0\0\x04\0\0\0\x04\0\0\0Go\0\0abcd");
        let linked: (u32, &[u8]) =
            (NOTE, b"\x04\0\0\0\x05\0\0\0\x03\0\0\0GNU\0idid!\0\0\0\x03\0\0\0\x04\0\0\0\x04\0\0\0Go\0\0abcd");
        for (bytes, kind) in [
            (file(MACHINE, &[gnu]), ProgramKind::Dynamic),
            (file(MACHINE, &[(1, b"code")]), ProgramKind::Static),
            (file(MACHINE, &[go]), ProgramKind::Static),
            (file(MACHINE, &[gnu, go]), ProgramKind::Go),
            (file(MACHINE, &[gnu, linked]), ProgramKind::Go),
            (file(MACHINE, &[musl]), ProgramKind::OtherLoader("/lib/ld-musl-x86_64.so.1".into())),
            (file(3, &[gnu]), ProgramKind::OtherMachine),
            (b"#! /usr/bin/env python3\nprint()".to_vec(), ProgramKind::Script("/usr/bin/env".into())),
            (b"#!/bin/sh".to_vec(), ProgramKind::Script("/bin/sh".into())),
            (b"echo".to_vec(), ProgramKind::Unknown),
            (b"#!\n".to_vec(), ProgramKind::Unknown),
            (b"\x7fELF\x02\x01".to_vec(), ProgramKind::Unknown),
            (Vec::new(), ProgramKind::Unknown),
        ] {
            assert_eq!(program_kind(&bytes), kind);
        }
    }
}
