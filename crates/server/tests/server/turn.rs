//! Order and rate of the drain: small jobs before large ones, and no faster than the limit.

use crate::direct::of_job;
use crate::drain::{PATIENCE, ROOT, before, clean, drain, report, until};
use crate::raw::pattern;
use forebay_backend::{Fault, Faulty, Memory};
use forebay_model::{Bytes, FileId};
use forebay_server::{Alpha, Draining};
use forebay_wire::{At, DrainCall};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

const WRITE: usize = 64 << 10;

/// Lets the given number of back-end writes begin; later ones wait.
#[derive(Default)]
struct Gate {
    left: Mutex<u32>,
    opened: Condvar,
}

impl Gate {
    fn let_in(&self, count: u32) {
        *self.left.lock().unwrap() = count;
        self.opened.notify_all();
    }

    fn pass(&self) -> Option<Fault> {
        let left = self.left.lock().unwrap();
        *self.opened.wait_while(left, |left| *left == 0).unwrap() -= 1;
        None
    }
}

#[test]
fn small_job_drains_before_a_large_one_is_done() {
    let gate = Arc::new(Gate::default());
    let waits = gate.clone();
    let backend =
        Faulty::new(Memory::default(), move |call| (call == "write").then(|| waits.pass()).flatten());
    let (write, quantum) = (Bytes(WRITE as u64), Some(Bytes(WRITE as u64)));
    let draining = Draining {
        write,
        quantum,
        alpha: Alpha::Fixed(1),
        age: PATIENCE,
        threshold: 99,
        ..Draining::default()
    };
    let world = before(Arc::new(backend), draining);
    let mut control = world.control();
    let mut put = |label: &str, count: usize| {
        let token = control.create(ROOT, label, 0o644);
        let mut data = of_job(&world, label, 1);
        data.write(token, At::Offset(0), &pattern(1, count * WRITE)).unwrap();
        token.file
    };
    let (large, small) = (put("large", 12), put("small", 1));
    let mut begin = |file: FileId, queued: usize| {
        let call = DrainCall::Begin { file: Some(file), order: None, last: false };
        let id = report(&mut control, call).ticket.expect("a ticket").id;
        until("its bytes are queued", || {
            let status = report(&mut control, DrainCall::Look { ticket: None }).status;
            status.targets[0].queued == (queued * WRITE) as u64
        });
        id
    };
    // The first write of the large job waits at the gate.
    begin(large, 11);
    let ticket = begin(small, 12);
    gate.let_in(2);
    until("the small job is drained", || {
        report(&mut control, DrainCall::Look { ticket: Some(ticket) }).ticket.expect("a ticket").done
    });
    assert!(control.walk("large").unwrap().buffered >= 11 * WRITE as u64, "the large job is still buffered");
    gate.let_in(u32::MAX);
    clean(&drain(&mut control, None));
}

#[test]
fn drain_rate_limit_is_respected() {
    const RATE: u64 = 2 << 20;
    const WRITES: usize = 24;
    let began: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let notes = began.clone();
    let backend = Faulty::new(Memory::default(), move |call| {
        if call == "write" {
            notes.lock().unwrap().push(Instant::now());
        }
        None
    });
    let draining = Draining {
        write: Bytes(WRITE as u64),
        rate: Some(Bytes(RATE)),
        age: PATIENCE,
        threshold: 99,
        ..Draining::default()
    };
    let world = before(Arc::new(backend), draining);
    let mut control = world.control();
    let token = control.create(ROOT, "f", 0o644);
    world.data().write(token, At::Offset(0), &pattern(1, WRITES * WRITE)).unwrap();
    let begin = Instant::now();
    clean(&drain(&mut control, None));
    let mut began: Vec<f64> =
        began.lock().unwrap().iter().map(|write| (*write - begin).as_secs_f64()).collect();
    began.sort_by(f64::total_cmp);
    assert_eq!(began.len(), WRITES);
    // The first write may begin at once.
    for (number, began) in began.iter().enumerate() {
        let earliest = (number * WRITE) as f64 / RATE as f64;
        assert!(*began >= earliest, "write {number} began after {began} s, {earliest} s were due");
    }
}
