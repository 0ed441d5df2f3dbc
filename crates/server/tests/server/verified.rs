//! Draining with read-back: differences are detected, and bytes overwritten meanwhile are no difference.

use crate::drain::{PATIENCE, ROOT, before, clean, create, drain, path};
use crate::raw::{Raw, pattern};
use forebay_backend::{Backend, Faulty, Memory};
use forebay_server::{Draining, Verify};
use forebay_wire::{At, Token};
use std::sync::{Arc, Mutex};

const LEN: usize = 300_000;
const PIECE: usize = 4096;

/// A client that overwrites the beginning of a file as soon as its drained bytes are read back.
type Overwriter = Arc<Mutex<Option<(Raw, Token)>>>;

/// A back end in which another worker writes the new bytes before the old ones are compared.
fn overwritten(memory: &Memory, overwriter: &Overwriter, new: Vec<u8>) -> Faulty<Memory> {
    let (backing, overwriter) = (memory.clone(), overwriter.clone());
    Faulty::new(memory.clone(), move |call| {
        let next = if call == "read" { overwriter.lock().unwrap().take() } else { None };
        if let Some((mut data, token)) = next {
            data.write(token, At::Offset(0), &new).unwrap();
            backing.open_to_write(&path("f")).unwrap().write_at(0, &[&new]).unwrap();
        }
        None
    })
}

#[test]
fn span_overwritten_during_read_back_is_no_mismatch() {
    let (memory, overwriter, new) = (Memory::default(), Overwriter::default(), vec![9; PIECE]);
    let faulty = overwritten(&memory, &overwriter, new.clone());
    let verify = Verify::ReadBack;
    let world = before(Arc::new(faulty), Draining { age: PATIENCE, verify, ..Draining::default() });
    let mut control = world.control();
    let token = create(&mut control, ROOT, "f");
    let mut expected = pattern(1, LEN);
    world.data().write(token, At::Offset(0), &expected).unwrap();
    *overwriter.lock().unwrap() = Some((world.data(), token));
    let first = drain(&mut control, None);
    assert!(overwriter.lock().unwrap().is_none(), "the file was overwritten");
    // A presumed difference would be written again.
    assert!(first.status.written <= (LEN + PIECE) as u64, "{first:?}");
    assert_eq!(first.ticket.expect("a ticket").failed, 0, "{first:?}");
    expected[..PIECE].copy_from_slice(&new);
    clean(&drain(&mut control, None));
    assert!(memory.bytes(&path("f")).unwrap() == expected);
    assert_eq!(control.walk("f").unwrap().buffered, 0);
}

#[test]
fn read_back_mismatch_beside_an_overwritten_span_is_detected() {
    let (memory, overwriter) = (Memory::default(), Overwriter::default());
    let (backing, once) = (memory.clone(), overwriter.clone());
    let faulty = Faulty::new(memory.clone(), move |call| {
        let next = if call == "read" { once.lock().unwrap().take() } else { None };
        if let Some((mut data, token)) = next {
            data.write(token, At::Offset(0), &[9; PIECE]).unwrap();
            let object = backing.open_to_write(&path("f")).unwrap();
            object.write_at(0, &[&[9; PIECE]]).unwrap();
            object.write_at((LEN / 2) as u64, &[b"other"]).unwrap();
        }
        None
    });
    let verify = Verify::ReadBack;
    let world = before(Arc::new(faulty), Draining { age: PATIENCE, verify, ..Draining::default() });
    let mut control = world.control();
    let token = create(&mut control, ROOT, "f");
    let mut expected = pattern(1, LEN);
    world.data().write(token, At::Offset(0), &expected).unwrap();
    *overwriter.lock().unwrap() = Some((world.data(), token));
    let first = drain(&mut control, None);
    assert!(first.status.written >= 2 * LEN as u64, "the difference is written again: {first:?}");
    expected[..PIECE].fill(9);
    clean(&drain(&mut control, None));
    assert!(memory.bytes(&path("f")).unwrap() == expected, "the buffer kept its copy");
}
