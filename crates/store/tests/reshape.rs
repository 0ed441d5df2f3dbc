//! A file striped over several stores and changed in all of them, with lost messages and crashes at every step.

#[path = "data/world.rs"]
#[allow(dead_code, reason = "each test file uses its part")]
mod world;

use forebay_model::{Error, ErrorKind, FileId, Reshape, Result, ServerId, Span, Stamp, Uid};
use forebay_store::{Batch, Place, Reshapes, Start, Verdict};
use forebay_testkit::{Rng, rounds, seed};
use std::sync::Arc;
use world::{SMALL, World};

const FILE: FileId = FileId(700);
const SERVERS: u16 = 3;
/// The coordinator.
const FIRST: ServerId = ServerId(0);
const STRIPE: u64 = 500;
const LONGEST: u64 = 8000;

/// A fault at an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    Lost,
    Crash { server: ServerId, machine: bool },
}

struct Node {
    world: World,
    shapes: Arc<Reshapes>,
}

/// Stores that share one striped file.
struct Cluster {
    nodes: Vec<Option<Node>>,
    rest: Vec<Option<World>>,
    events: u64,
    fault: Option<(u64, Fault)>,
    clock: u64,
}

fn open(world: World) -> Node {
    let shapes = Reshapes::open(world.kv.clone()).expect("readable records");
    Node { world, shapes }
}

fn gone() -> Error {
    ErrorKind::Unreachable.into()
}

fn others() -> impl Iterator<Item = ServerId> {
    (1..SERVERS).map(ServerId)
}

impl Cluster {
    fn new() -> Cluster {
        let nodes = (0..SERVERS).map(|_| Some(open(World::new(SMALL)))).collect();
        Cluster { nodes, rest: (0..SERVERS).map(|_| None).collect(), events: 0, fault: None, clock: 1 }
    }

    fn node(&self, server: ServerId) -> Result<&Node> {
        self.nodes[usize::from(server.0)].as_ref().ok_or_else(gone)
    }

    fn crash(&mut self, server: ServerId, machine: bool) {
        let Some(Node { world, .. }) = self.nodes[usize::from(server.0)].take() else { return };
        let (disk, kv) = match machine {
            true => (Arc::new(world.disk.after_power_cut(512, &mut || false)), Arc::new(world.kv.crash(0))),
            false => (world.disk.clone(), world.kv.clone()),
        };
        drop(world.data);
        let start = if machine { Start::MachineDied } else { Start::ProcessDied };
        let again = World::open(disk, kv, SMALL, start).expect("a sound store opens").0;
        self.rest[usize::from(server.0)] = Some(again);
    }

    fn restart(&mut self) {
        self.fault = None;
        for (node, rest) in self.nodes.iter_mut().zip(&mut self.rest) {
            if let Some(world) = rest.take() {
                *node = Some(open(world));
            }
        }
    }

    /// Marks an event: a message is about to arrive, or an action was just done.
    fn event(&mut self) -> Result<()> {
        self.events += 1;
        match self.fault {
            Some((at, fault)) if at == self.events => {
                self.fault = None;
                if let Fault::Crash { server, machine } = fault {
                    self.crash(server, machine);
                }
                Err(gone())
            }
            _ => Ok(()),
        }
    }

    /// One server performs a request of another; either may be down when the reply arrives.
    fn ask<T>(&mut self, from: ServerId, to: ServerId, act: impl FnOnce(&Node) -> Result<T>) -> Result<T> {
        self.event()?;
        self.node(from)?;
        let got = act(self.node(to)?)?;
        self.event()?;
        self.node(from)?;
        Ok(got)
    }

    fn change(&mut self, change: Reshape) -> Result<()> {
        self.notify()?;
        self.clock += 1;
        let serial = Stamp(self.clock);
        let opening = self.node(FIRST)?.shapes.begin(FILE, serial, change)?;
        for server in others() {
            self.ask(FIRST, server, |node| node.shapes.prepare(FILE, serial, change))?;
        }
        let first = self.node(FIRST)?;
        first.shapes.decide(&first.world.data, &opening, others().collect(), Batch::default())?;
        self.event()?;
        // The request succeeds even if not all servers could be notified.
        let _ = self.notify();
        Ok(())
    }

    fn notify(&mut self) -> Result<()> {
        let Some((serial, left)) = self.node(FIRST)?.shapes.untold(FILE)? else { return Ok(()) };
        for server in left {
            self.ask(FIRST, server, |node| {
                node.shapes.finish(&node.world.data, FILE, serial, Verdict::Done)
            })?;
            self.node(FIRST)?.shapes.acknowledged(FILE, serial, server)?;
        }
        Ok(())
    }

    /// What a server does before it uses the file.
    fn resolve(&mut self, server: ServerId) -> Result<()> {
        let Some(serial) = self.node(server)?.shapes.pending(FILE) else { return Ok(()) };
        let verdict = self.ask(server, FIRST, |node| node.shapes.verdict(FILE, serial))?;
        match verdict {
            Some(verdict) => {
                let node = self.node(server)?;
                node.shapes.finish(&node.world.data, FILE, serial, verdict)
            }
            None => Ok(()),
        }
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let (mut at, mut left) = (offset, bytes);
        while !left.is_empty() {
            let (now, later) = left.split_at(left.len().min((STRIPE - at % STRIPE) as usize));
            let server = owner(at);
            self.resolve(server)?;
            self.node(server)?.world.write(FILE, Place::At(at), now, Uid(1))?;
            (at, left) = (at + now.len() as u64, later);
        }
        Ok(())
    }

    fn sync(&self) {
        self.nodes.iter().flatten().for_each(|node| node.world.data.sync_all().expect("memory"));
    }

    /// The file as its users see it.
    fn view(&mut self) -> Vec<u8> {
        for server in others() {
            self.resolve(server).expect("all run");
        }
        let size = |node: &Node| node.world.data.facts(FILE).expect("memory").size;
        let size = self.nodes.iter().flatten().map(size).max().expect("three");
        let held: Vec<Vec<u8>> =
            self.nodes.iter().flatten().map(|node| node.world.read_all(FILE).expect("memory")).collect();
        let byte = |at: u64| held[usize::from(owner(at).0)].get(at as usize).copied().unwrap_or_default();
        (0..size).map(byte).collect()
    }

    fn resolve_all(&mut self) {
        self.notify().expect("all run");
        for server in others() {
            self.resolve(server).expect("all run");
            assert_eq!(self.node(server).expect("it runs").shapes.all_pending(), []);
        }
        assert_eq!(self.node(FIRST).expect("it runs").shapes.all_untold(), []);
    }
}

fn owner(at: u64) -> ServerId {
    ServerId((at / STRIPE % u64::from(SERVERS)) as u16)
}

fn apply(change: Reshape, bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    match change {
        Reshape::Cut(size) => bytes.resize(size as usize, 0),
        Reshape::Punch(span) => {
            let end = bytes.len().min(span.end as usize);
            bytes[(span.start as usize).min(end)..end].fill(0);
        }
    }
    bytes
}

/// A cluster with a file, and the file's content.
fn used() -> (Cluster, Vec<u8>) {
    let mut cluster = Cluster::new();
    let bytes = Rng::new(5).bytes(2300);
    cluster.write(0, &bytes).expect("all run");
    cluster.sync();
    (cluster, bytes)
}

const CHANGES: [Reshape; 4] =
    [Reshape::Cut(0), Reshape::Cut(700), Reshape::Cut(4000), Reshape::Punch(Span { start: 400, end: 1700 })];

#[test]
fn crash_at_any_step_changes_all_stores_or_none() {
    for change in CHANGES {
        let (mut cluster, before) = used();
        let start = cluster.events;
        cluster.change(change).expect("nothing goes wrong");
        let (steps, after) = (cluster.events - start, apply(change, &before));
        assert_eq!(cluster.view(), after);
        let machines = [false, true].into_iter();
        let deaths = machines.flat_map(|machine| {
            (0..SERVERS).map(move |server| Fault::Crash { server: ServerId(server), machine })
        });
        let faults: Vec<Fault> = deaths.chain([Fault::Lost]).collect();
        for step in 1..=steps {
            for &fault in &faults {
                let context = format!("{change:?}, {fault:?} at step {step} of {steps}");
                let (mut cluster, before) = used();
                cluster.fault = Some((cluster.events + step, fault));
                let got = cluster.change(change);
                cluster.restart();
                let seen = cluster.view();
                match got {
                    Ok(()) => assert!(seen == after, "{context}: it was reported as done"),
                    Err(_) => assert!(seen == after || seen == before, "{context}: an intermediate state"),
                }
                // Later writes are not undone by the open change.
                cluster.write(1600, b"later").expect("all run");
                let mut later = seen;
                later.resize(later.len().max(1605), 0);
                later[1600..1605].copy_from_slice(b"later");
                cluster.resolve_all();
                assert!(cluster.view() == later, "{context}: undone");
                cluster.change(Reshape::Cut(10)).expect("no change is open any more");
                assert_eq!(cluster.view(), later[..10], "{context}");
            }
        }
    }
}

#[test]
fn random_changes_of_a_file_in_several_stores_match_the_model() {
    let base = seed();
    for round in rounds(20) {
        let mut rng = Rng::new(base.wrapping_mul(31).wrapping_add(round));
        let (mut cluster, mut model) = used();
        for number in 0..60 {
            let context = format!("FOREBAY_SEED={base}, round {round}, step {number}");
            let offset = rng.below(LONGEST - 400);
            if rng.one_in(3) {
                let len = 1 + rng.below(300) as usize;
                let bytes = rng.bytes(len);
                cluster.write(offset, &bytes).expect("all run");
                let end = offset as usize + bytes.len();
                model.resize(model.len().max(end), 0);
                model[offset as usize..end].copy_from_slice(&bytes);
                cluster.sync();
                continue;
            }
            let change = match rng.one_in(3) {
                true => Reshape::Punch(Span::new(offset, offset + 1 + rng.below(2000))),
                false => Reshape::Cut(offset),
            };
            if rng.one_in(2) {
                let (server, machine) = (ServerId(rng.below(u64::from(SERVERS)) as u16), rng.one_in(2));
                let fault = *rng.pick(&[Fault::Lost, Fault::Crash { server, machine }]);
                cluster.fault = Some((cluster.events + 1 + rng.below(10), fault));
            }
            let got = cluster.change(change);
            cluster.restart();
            let (seen, after) = (cluster.view(), apply(change, &model));
            assert!(seen == after || (got.is_err() && seen == model), "{context}: {change:?} {got:?}");
            model = seen;
        }
        cluster.resolve_all();
        assert!(cluster.view() == model, "FOREBAY_SEED={base}, round {round}");
    }
}

#[test]
fn open_changes_are_bounded_and_decided_by_the_coordinator() {
    let world = World::new(SMALL);
    let Node { world, shapes } = open(world);
    let opening = shapes.begin(FILE, Stamp(5), Reshape::Cut(3)).unwrap();
    assert_eq!(shapes.begin(FILE, Stamp(6), Reshape::Cut(3)).map(drop).unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(shapes.verdict(FILE, Stamp(5)).unwrap(), None, "open");
    drop(opening);
    assert_eq!(shapes.verdict(FILE, Stamp(5)).unwrap(), Some(Verdict::Undone), "given up");

    shapes.prepare(FILE, Stamp(8), Reshape::Cut(4)).unwrap();
    let late = shapes.prepare(FILE, Stamp(7), Reshape::Cut(9)).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Stale, "an earlier stamp");
    shapes.finish(&world.data, FILE, Stamp(7), Verdict::Done).unwrap();
    assert_eq!(shapes.pending(FILE), Some(Stamp(8)), "another change");
    for number in 0..1023 {
        shapes.prepare(FileId(10_000 + number), Stamp(9), Reshape::Cut(0)).unwrap();
    }
    let full = shapes.prepare(FileId(9), Stamp(9), Reshape::Cut(0)).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::Busy);
    shapes.delete(&world.data, FILE, Batch::default()).unwrap();
    shapes.prepare(FileId(9), Stamp(9), Reshape::Cut(0)).unwrap();
    assert_eq!(
        Reshapes::open(world.kv.clone()).unwrap().all_pending().len(),
        1024,
        "they are restored after a restart"
    );
}
