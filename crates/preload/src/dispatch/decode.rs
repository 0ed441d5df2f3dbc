//! Finds `syscall` instructions in machine code. Pure functions.
//!
//! The two bytes of the instruction also occur inside other instructions. Decoding x86-64 from an arbitrary byte
//! synchronises with the true instruction boundaries after a few instructions, so a candidate counts if decoding from
//! most start positions shortly before it arrives exactly at it.

const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// Start positions before a candidate: from `FARTHEST` to `NEAREST` bytes before it.
const FARTHEST: usize = 56;
const NEAREST: usize = 20;

/// The immediate bytes that follow an opcode.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Immediate {
    None,
    Byte,
    /// Four bytes, two with an operand-size prefix.
    Full,
    Fixed(usize),
}

/// The layout after an opcode: whether a ModRM byte follows, and which immediate.
type Layout = (bool, Immediate);

/// Prefixes of an instruction.
#[derive(Default, Clone, Copy)]
struct Prefixes {
    operand_16: bool,
    address_32: bool,
    wide: bool,
}

/// One-byte opcodes; `None` for those that do not exist in 64-bit mode.
fn one_byte(opcode: u8, prefixes: Prefixes, modrm: u8) -> Option<Layout> {
    use Immediate::{Byte, Fixed, Full, None as Nothing};
    let register = modrm >> 3 & 7;
    Some(match opcode {
        0x00..=0x3f => match opcode & 7 {
            0..=3 => (true, Nothing),
            4 => (false, Byte),
            5 => (false, Full),
            _ => return None,
        },
        0x63 | 0x84..=0x8f | 0xd0..=0xd3 | 0xd8..=0xdf | 0xfe | 0xff => (true, Nothing),
        0x68 | 0xa9 => (false, Full),
        0x69 | 0x81 | 0xc7 => (true, Full),
        0x6a | 0x70..=0x7f | 0xa8 | 0xb0..=0xb7 | 0xcd | 0xe0..=0xe7 | 0xeb => (false, Byte),
        0x6b | 0x80 | 0x83 | 0xc0 | 0xc1 | 0xc6 => (true, Byte),
        0xa0..=0xa3 => (false, Fixed(if prefixes.address_32 { 4 } else { 8 })),
        0xb8..=0xbf => (false, if prefixes.wide { Fixed(8) } else { Full }),
        0xc2 | 0xca => (false, Fixed(2)),
        0xc8 => (false, Fixed(3)),
        0xe8 | 0xe9 => (false, Fixed(4)),
        0xf6 => (true, if register < 2 { Byte } else { Nothing }),
        0xf7 => (true, if register < 2 { Full } else { Nothing }),
        0x50..=0x5f
        | 0x6c..=0x6f
        | 0x90..=0x99
        | 0x9b..=0x9f
        | 0xa4..=0xa7
        | 0xaa..=0xaf
        | 0xc3
        | 0xc9
        | 0xcb
        | 0xcc
        | 0xcf
        | 0xd7
        | 0xec..=0xef
        | 0xf1
        | 0xf4
        | 0xf5
        | 0xf8..=0xfd => (false, Nothing),
        _ => return None,
    })
}

/// Opcodes after `0f`.
fn two_bytes(opcode: u8) -> Option<Layout> {
    use Immediate::{Byte, Fixed, None as Nothing};
    Some(match opcode {
        0x05..=0x09 | 0x0b | 0x0e | 0x30..=0x37 | 0x77 | 0xa0..=0xa2 | 0xa8..=0xaa | 0xc8..=0xcf => {
            (false, Nothing)
        }
        0x80..=0x8f => (false, Fixed(4)),
        0x0f | 0x70..=0x73 | 0xa4 | 0xac | 0xba | 0xc2 | 0xc4..=0xc6 => (true, Byte),
        0x04 | 0x0a | 0x0c | 0x24..=0x27 | 0x38..=0x3f | 0x7a | 0x7b | 0xa6 | 0xa7 => return None,
        _ => (true, Nothing),
    })
}

/// Opcodes of the maps that VEX and EVEX prefixes name by number.
fn mapped(map: u8, opcode: u8) -> Option<Layout> {
    match map {
        1 => two_bytes(opcode),
        2 | 5 | 6 => Some((true, Immediate::None)),
        3 => Some((true, Immediate::Byte)),
        _ => None,
    }
}

/// Length of a ModRM byte with its SIB byte and displacement.
fn operand_len(code: &[u8]) -> Option<usize> {
    let modrm = *code.first()?;
    let (mode, place) = (modrm >> 6, modrm & 7);
    if mode == 3 {
        return Some(1);
    }
    let index = usize::from(place == 4);
    let base = if place == 4 { *code.get(1)? & 7 } else { place };
    let displacement = match mode {
        0 if base == 5 => 4,
        0 => 0,
        1 => 1,
        _ => 4,
    };
    Some(1 + index + displacement)
}

/// The prefixes at the start of some code, the first byte of the opcode, and the offset after it.
fn beginning(code: &[u8]) -> Option<(Prefixes, u8, usize)> {
    const MOST: usize = 8;
    let mut prefixes = Prefixes::default();
    for (at, byte) in code.iter().copied().enumerate().take(MOST) {
        match byte {
            0x66 => prefixes.operand_16 = true,
            0x67 => prefixes.address_32 = true,
            0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65 | 0xf0 | 0xf2 | 0xf3 => {}
            // The opcode follows immediately.
            0x40..=0x4f => {
                prefixes.wide = byte & 8 != 0;
                return Some((prefixes, *code.get(at + 1)?, at + 2));
            }
            _ => return Some((prefixes, byte, at + 1)),
        }
    }
    None
}

/// The layout after an opcode that begins with a given byte, and the offset after the whole opcode.
fn layout(code: &[u8], prefixes: Prefixes, opcode: u8, at: usize) -> Option<(Layout, usize)> {
    let get = |at: usize| code.get(at).copied();
    Some(match opcode {
        0x0f => match get(at)? {
            0x38 => ((true, Immediate::None), at + 2),
            0x3a => ((true, Immediate::Byte), at + 2),
            second => (two_bytes(second)?, at + 1),
        },
        0xc5 => (mapped(1, get(at + 1)?)?, at + 2),
        0xc4 => (mapped(get(at)? & 0x1f, get(at + 2)?)?, at + 3),
        0x62 => (mapped(get(at)? & 7, get(at + 3)?)?, at + 4),
        _ => (one_byte(opcode, prefixes, get(at).unwrap_or(0))?, at),
    })
}

/// The length of the instruction at the start of some code; `None` if it is invalid.
fn length(code: &[u8]) -> Option<usize> {
    let (prefixes, opcode, at) = beginning(code)?;
    let ((has_operand, immediate), mut at) = layout(code, prefixes, opcode, at)?;
    if has_operand {
        at += operand_len(code.get(at..)?)?;
    }
    at += match immediate {
        Immediate::None => 0,
        Immediate::Byte => 1,
        Immediate::Full if prefixes.operand_16 => 2,
        Immediate::Full => 4,
        Immediate::Fixed(len) => len,
    };
    (at <= code.len() && at <= 15).then_some(at)
}

/// What is known about the number of the system call that an instruction makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Number {
    /// Nothing sets `eax` nearby: probably this is not code.
    Unset,
    /// It is set, but not to a constant.
    Unknown,
    Known(u32),
}

/// The effect of the instruction in `code` on the number in `eax`.
fn follow(code: &[u8], before: Number) -> Number {
    match *code {
        [0xb8, a, b, c, d] => Number::Known(u32::from_le_bytes([a, b, c, d])),
        [0x48, 0xc7, 0xc0, a, b, c, d] => Number::Known(u32::from_le_bytes([a, b, c, d])),
        [0x31 | 0x33, 0xc0] => Number::Known(0),
        // Moves into eax or rax, from registers and from memory, and `pop`.
        [0x89, modrm] | [0x40..=0x4f, 0x89, modrm] if modrm & 0xc7 == 0xc0 => Number::Unknown,
        [0x8b, modrm, ..] | [0x40..=0x4b, 0x8b, modrm, ..] if modrm >> 3 & 7 == 0 => Number::Unknown,
        [0x8d, modrm, ..] | [0x40..=0x4b, 0x8d, modrm, ..] if modrm >> 3 & 7 == 0 => Number::Unknown,
        [0x58] | [0x48, 0x63, _, ..] => Number::Unknown,
        // A call leaves its result in eax.
        [0xe8, ..] | [0xff, ..] if code.len() > 2 => Number::Unknown,
        _ => before,
    }
}

/// Decodes from a start to a candidate: returns the number in `eax` there, or `None` if decoding misses the candidate.
fn walk(code: &[u8], start: usize, candidate: usize) -> Option<Number> {
    let (mut at, mut number) = (start, Number::Unset);
    while at < candidate {
        let len = length(&code[at..])?;
        number = follow(&code[at..at + len], number);
        at += len;
    }
    (at == candidate).then_some(number)
}

/// The number of the `syscall` at an offset, if decoding from most starts before it arrives at it.
fn at(code: &[u8], candidate: usize) -> Option<Number> {
    let starts = candidate.saturating_sub(FARTHEST)..=candidate.saturating_sub(NEAREST);
    let (mut hits, mut all) = (0, 0);
    let mut found = Number::Unset;
    for start in starts {
        all += 1;
        if let Some(number) = walk(code, start, candidate) {
            hits += 1;
            if found == Number::Unset || matches!(number, Number::Known(_)) {
                found = number;
            }
        }
    }
    (hits * 2 > all).then_some(found)
}

/// Calls `visit` with every `syscall` instruction in some code until it returns that it has seen enough.
pub(super) fn each(code: &[u8], mut visit: impl FnMut(Number) -> bool) {
    let mut from = 0;
    while let Some(found) = find(&code[from..]) {
        let candidate = from + found;
        if let Some(number) = at(code, candidate)
            && visit(number)
        {
            return;
        }
        from = candidate + 2;
    }
}

/// The first offset of the two bytes.
fn find(code: &[u8]) -> Option<usize> {
    // Most blocks contain neither the pair nor its first byte: whole blocks are compared at once.
    const BLOCK: usize = 64;
    let mut base = 0;
    while code.len() - base > BLOCK {
        let block = &code[base..=base + BLOCK];
        let mut any = 0_u8;
        for at in 0..BLOCK {
            any |= u8::from(block[at] == SYSCALL[0]) & u8::from(block[at + 1] == SYSCALL[1]);
        }
        if any != 0 {
            break;
        }
        base += BLOCK;
    }
    code[base..].windows(2).position(|pair| pair == SYSCALL).map(|at| base + at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(code: &[u8]) -> Vec<Number> {
        let mut found = Vec::new();
        each(code, |number| {
            found.push(number);
            false
        });
        found
    }

    #[test]
    fn instruction_lengths_are_decoded() {
        for (code, len) in [
            (&[0x90_u8][..], 1),
            (&[0x0f, 0x05], 2),
            (&[0xb8, 1, 0, 0, 0], 5),
            (&[0x48, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8], 10),
            (&[0x66, 0xc7, 0x04, 0x25, 0, 0, 0, 0, 1, 0], 10),
            (&[0x48, 0x8b, 0x44, 0x24, 0x08], 5),
            (&[0x48, 0x8d, 0x05, 1, 2, 3, 4], 7),
            (&[0x0f, 0x84, 1, 2, 3, 4], 6),
            (&[0xf3, 0x0f, 0x1e, 0xfa], 4),
            (&[0xc5, 0xf8, 0x77], 3),
            (&[0xc4, 0xe3, 0x7d, 0x39, 0xc1, 0x01], 6),
            (&[0x62, 0xf1, 0xfe, 0x48, 0x6f, 0x06], 6),
            (&[0xf7, 0xc1, 1, 0, 0, 0], 6),
            (&[0xf7, 0xd9], 2),
            (&[0x66, 0x0f, 0x3a, 0x0f, 0xc1, 0x08], 6),
            (&[0xe8, 1, 2, 3, 4], 5),
        ] {
            assert_eq!(length(code), Some(len), "{code:02x?}");
        }
        for code in [&[0x06_u8][..], &[0x9a], &[0x0f, 0x04], &[0xb8, 1]] {
            assert_eq!(length(code), None, "{code:02x?}");
        }
    }

    #[test]
    fn syscall_instructions_are_found_but_not_constants() {
        // Sixty bytes of `mov rdi, rbx` and similar instructions in front, as in a function.
        let front: Vec<u8> = [0x48, 0x89, 0xdf, 0x31, 0xd2].repeat(12);
        let with = |tail: &[u8]| [&front[..], tail, &[0xc3, 0x90, 0x90, 0x90]].concat();
        for (tail, expected) in [
            // mov eax, 257; syscall
            (&[0xb8_u8, 1, 1, 0, 0, 0x0f, 0x05][..], vec![Number::Known(257)]),
            // mov eax, ebp; syscall
            (&[0x89, 0xe8, 0x0f, 0x05], vec![Number::Unknown]),
            // xor eax, eax; mov esi, [rip+..]; syscall
            (&[0x31, 0xc0, 0x8b, 0x35, 1, 2, 3, 4, 0x0f, 0x05], vec![Number::Known(0)]),
            // mov esi, 0x050f00; lea rax, [rip + 0x050f]; jmp
            (&[0xbe, 0, 0x0f, 0x05, 0], vec![]),
            (&[0x48, 0x8d, 0x05, 0x0f, 0x05, 0, 0], vec![]),
            (&[0xe9, 0x0f, 0x05, 0, 0], vec![]),
            (&[0x81, 0xf9, 0x0f, 0x05, 0, 0], vec![]),
        ] {
            assert_eq!(numbers(&with(tail)), expected, "{tail:02x?}");
        }
    }
}
