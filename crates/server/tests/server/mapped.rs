//! Mapped files, as clients of the wire see them.

use crate::backing::open;
use crate::raw::{World, pattern};
use forebay_backend::{Faulty, Memory};
use forebay_model::{Access, Gid, Uid};
use forebay_wire::{FileMap, Reply, Request};
use std::sync::Arc;
use std::time::Duration;

#[test]
fn file_of_a_slow_back_end_can_be_mapped() {
    const LEN: usize = 3 << 20;
    let memory = Memory::default();
    memory.put(&crate::drain::path("f"), (Uid(0), Gid(0)), 0o644, &pattern(1, LEN));
    // Longer than the interval at which unused objects end.
    let slow = Faulty::new(memory, |call| {
        if call == "read" {
            std::thread::sleep(Duration::from_millis(300));
        }
        None
    });
    let world = World::before(Arc::new(slow));
    let mut raw = world.control();
    let token = open(&mut raw, "f", Access::BOTH).unwrap();
    for write in [false, true] {
        let mapped = raw.call(Request::MapFile { token, offset: 0, len: LEN as u64, write });
        assert!(matches!(mapped, Ok(Reply::FileMap(FileMap::Shared { .. }))), "{mapped:?}");
    }
}
